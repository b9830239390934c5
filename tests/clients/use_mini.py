"""mini-swe-agent: a few steps of its default agent; nano need not solve anything.
use_mini.py URL DIRECTORY"""
import sys
from pathlib import Path

import minisweagent
import yaml
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel

url, folder = sys.argv[1:3]
config = yaml.safe_load((Path(minisweagent.__file__).parent / 'config/default.yaml').read_text())
model = {**config.get('model', {}), 'cost_tracking': 'ignore_errors'}
model['model_kwargs'] = {**model.get('model_kwargs', {}), 'api_base': url + '/v1',
                         'temperature': 0, 'max_tokens': 100}
agent = DefaultAgent(LitellmModel(model_name='openai/nano', **model),
                     LocalEnvironment(cwd=folder, timeout=10),
                     **{**config['agent'], 'step_limit': 2, 'cost_limit': 0})
print(agent.run('Search for alpha in ' + folder + '.'))

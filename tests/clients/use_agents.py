"""openai-agents: the framework's own loop over nano's tools, which are run for real.
use_agents.py URL DIRECTORY"""
import asyncio
import os
import sys

from agents import (Agent, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner,
                    function_tool, set_tracing_disabled)
from check import Checks, read_file as read_text, run_shell as run_command
from openai import AsyncOpenAI

check = Checks()
made = []


@function_tool
def run_shell(command: str) -> str:
    """Run a shell command and return its output."""
    made.append(('run_shell', command, run_command(command)))
    return made[-1][2]


@function_tool
def read_file(path: str) -> str:
    """Read a text file."""
    made.append(('read_file', path, read_text(path)))
    return made[-1][2]


async def turn(model, question):
    """All items of a run that may make a few calls."""
    made.clear()
    agent = Agent(name='nano', instructions='You are a coding assistant.', model=model,
                  tools=[run_shell, read_file],
                  model_settings=ModelSettings(temperature=0, max_tokens=120))
    result = await Runner.run(agent, question, max_turns=4)
    return result.to_input_list()


def outputs(items):
    return [str(i.get('output', i.get('content'))) for i in items
            if i.get('type') == 'function_call_output' or i.get('role') == 'tool']


async def main(url, folder):
    client = AsyncOpenAI(base_url=url + '/v1', api_key='none', max_retries=0, timeout=60)
    notes = os.path.join('cpu', 'README.md')

    set_tracing_disabled(True)
    os.chdir(folder)
    os.mkdir('cpu')
    for path in (notes, 'README.md'):
        with open(path, 'w', encoding='utf-8') as f:
            f.write('one\nthe alpha of the river\n')
    for kind in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
        model = kind(model='nano', openai_client=client)
        items = await turn(model, 'Search for alpha in cpu.')
        check(made and made[0][0] == 'run_shell' and f'{notes}:2:the alpha' in made[0][2],
              f'{kind.__name__}: run_shell found what is on disk', (made, items))
        check(any('the alpha of the river' in o for o in outputs(items)) and
              items[-1].get('role') == 'assistant', 'its output went back and was answered', items)
        items = await turn(model, 'Read README.md.')
        check(made and made[0][0] == 'read_file' and made[0][2].startswith('one\n'),
              f'{kind.__name__}: read_file read what is on disk', (made, items))


asyncio.run(main(*sys.argv[1:3]))
check.end()

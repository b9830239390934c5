"""lm-eval's local-completions: perplexity of held-out text, which is read where it lies.
use_lm_eval.py URL TOKENIZER TEXT"""
import sys

from check import Checks
from lm_eval.models.openai_completions import LocalCompletionsAPI

url, tokenizer, path = sys.argv[1:4]
check = Checks()
with open(path, encoding='utf-8') as f:
    text = f.read().split('\0')[0][:1500]


class Instance:
    def __init__(self, *args):
        self.args = args


def model(**more):
    return LocalCompletionsAPI(model='nano', base_url=url + '/v1/completions', max_length=2048,
                               tokenizer=tokenizer, num_concurrent=1, max_retries=1, **more)


half = text.index(' ', len(text) // 2)
pairs = [Instance(text[:half], text[half:half + 60]), Instance('a', ' b')]
for ids in (True, False):
    how = 'ids' if ids else 'strings'
    lm = model(batch_size=2, tokenized_requests=ids)
    got = lm.loglikelihood(pairs, disable_tqdm=True)
    check(len(got) == 2 and all(p < 0 for p, _ in got), f'log-likelihoods, prompts are {how}', got)
    if ids:
        [whole] = lm.loglikelihood_rolling([Instance(text)], disable_tqdm=True)
        check(whole < 0, 'the log-likelihood of a whole text', whole)
        n = len(lm.tok_encode(text))
        check(-8 < whole / n < -1, f'{n} tokens of held-out text are not a surprise', whole)
check.end()

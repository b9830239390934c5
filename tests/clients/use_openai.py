"""openai-python: chat, streams, tools, responses, completions, errors.
use_openai.py URL"""
import json
import sys

import openai
from check import TOOLS, Checks

check = Checks()
client = openai.OpenAI(base_url=sys.argv[1] + '/v1', api_key='none', max_retries=0, timeout=60)
tools = [{'type': 'function', 'function': {'name': n, 'description': d, 'parameters': p}}
         for n, d, p in TOOLS]
flat = [{'type': 'function', 'name': n, 'description': d, 'parameters': p} for n, d, p in TOOLS]
grep = {'model': 'nano', 'temperature': 0, 'max_tokens': 80, 'tools': tools,
        'messages': [{'role': 'user', 'content': 'Search for alpha in /tmp.'}]}
plain = {'model': 'nano', 'temperature': 0, 'max_tokens': 60,
         'messages': [{'role': 'user', 'content': 'What is grep?'}]}


def chat():
    r = client.chat.completions.create(**plain)
    text = r.choices[0].message.content
    check(text and r.choices[0].finish_reason == 'stop' and r.usage.completion_tokens > 0,
          'chat', r)
    pieces = list(client.chat.completions.create(
        **plain, stream=True, stream_options={'include_usage': True}))
    streamed = ''.join(p.choices[0].delta.content or '' for p in pieces if p.choices)
    check(streamed == text, 'chat, streamed, says the same', streamed)
    check(pieces[-1].usage and pieces[-1].usage.total_tokens == r.usage.total_tokens,
          'the last piece has the usage', pieces[-1])
    r = client.chat.completions.create(**plain, logprobs=True, top_logprobs=2)
    check(all(len(t.top_logprobs) == 2 for t in r.choices[0].logprobs.content), 'log-probabilities',
          r.choices[0].logprobs)


def chat_tools():
    r = client.chat.completions.create(**grep)
    calls = r.choices[0].message.tool_calls
    if not check(calls and r.choices[0].finish_reason == 'tool_calls', 'a call', r):
        return
    command = json.loads(calls[0].function.arguments)['command']
    check(calls[0].function.name == 'run_shell' and '/tmp' in command, 'of run_shell', command)
    with client.chat.completions.stream(**grep) as stream:
        last = stream.get_final_completion().choices[0].message.tool_calls
    check([c.function.arguments for c in last] == [c.function.arguments for c in calls],
          'the call, streamed', last)
    messages = grep['messages'] + [r.choices[0].message, {
        'role': 'tool', 'tool_call_id': calls[0].id, 'content': '/tmp/a:1:alpha'}]
    r = client.chat.completions.create(**{**grep, 'messages': messages})
    check(r.choices[0].message.content or r.choices[0].message.tool_calls,
          'the result goes back', r)
    check(r.usage.prompt_tokens_details.cached_tokens > 0, 'and the first turn is kept', r.usage)


def responses():
    ask = {'model': 'nano', 'temperature': 0, 'max_output_tokens': 80, 'store': False}
    r = client.responses.create(**ask, input='What is grep?')
    check(r.status == 'completed' and r.output_text, 'responses', r)
    with client.responses.stream(**ask, input='What is grep?') as stream:
        kinds = [e.type for e in stream]
        last = stream.get_final_response()
    check(last.output_text == r.output_text and 'response.output_text.delta' in kinds,
          'responses, streamed, say the same', kinds)
    said = [{'role': 'user', 'content': 'Search for alpha in /tmp.'}]
    r = client.responses.create(**ask, input=said, tools=flat)
    calls = [o for o in r.output if o.type == 'function_call']
    if check(calls and calls[0].name == 'run_shell', 'responses: a call', r):
        said += r.output + [{'type': 'function_call_output', 'call_id': calls[0].call_id,
                             'output': '/tmp/a:1:alpha'}]
        r = client.responses.create(**ask, input=said, tools=flat)
        check(r.output, 'responses: the result goes back', r)


def others():
    check(client.models.list().data[0].id, 'models')
    r = client.completions.create(model='nano', prompt=['a', 'b'], max_tokens=2, temperature=0)
    check([c.index for c in r.choices] == [0, 1], 'completions of two strings', r)
    r = client.completions.create(model='nano', prompt=[[2, 100], [2, 101, 102]], max_tokens=2)
    check([c.index for c in r.choices] == [0, 1], 'completions of two arrays of ids', r)
    try:
        client.chat.completions.create(**{**plain, 'temperature': -1})
        check(False, 'a refusal')
    except openai.BadRequestError as e:
        check(e.param == 'temperature', 'a refusal names its field', e)


for part in (chat, chat_tools, responses, others):
    part()
check.end()

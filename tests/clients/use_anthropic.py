"""anthropic: messages, streams, tools, counting, errors.
use_anthropic.py URL"""
import sys

import anthropic
from check import TOOLS, Checks

check = Checks()
client = anthropic.Anthropic(base_url=sys.argv[1], api_key='none', max_retries=0, timeout=60)
tools = [{'name': n, 'description': d, 'input_schema': p} for n, d, p in TOOLS]
# The newest versions no longer have the temperature as an argument.
ask = {'model': 'nano', 'max_tokens': 80, 'extra_body': {'temperature': 0}}
plain = [{'role': 'user', 'content': 'What is grep?'}]
grep = [{'role': 'user', 'content': 'Search for alpha in /tmp.'}]

r = client.messages.create(**ask, messages=plain)
text = ''.join(b.text for b in r.content if b.type == 'text')
check(text and r.stop_reason == 'end_turn' and r.usage.output_tokens > 0, 'messages', r)
with client.messages.stream(**ask, messages=plain) as stream:
    streamed = ''.join(stream.text_stream)
    last = stream.get_final_message()
check(streamed == text and last.stop_reason == 'end_turn', 'messages, streamed, say the same', last)
n = client.messages.count_tokens(model='nano', messages=plain).input_tokens
read = r.usage.input_tokens + (r.usage.cache_read_input_tokens or 0)
check(n == read, 'the prompt counts as many tokens', (n, r.usage))

r = client.messages.create(**ask, messages=grep, tools=tools)
calls = [b for b in r.content if b.type == 'tool_use']
if check(calls and r.stop_reason == 'tool_use', 'a call', r):
    check(calls[0].name == 'run_shell' and '/tmp' in calls[0].input['command'], 'of run_shell',
          calls)
    with client.messages.stream(**ask, messages=grep, tools=tools) as stream:
        last = [b for b in stream.get_final_message().content if b.type == 'tool_use']
    check([b.input for b in last] == [b.input for b in calls], 'the call, streamed', last)
    r = client.messages.create(**ask, tools=tools, messages=grep + [
        {'role': 'assistant', 'content': r.content},
        {'role': 'user', 'content': [{'type': 'tool_result', 'tool_use_id': calls[0].id,
                                      'content': '/tmp/a:1:alpha'}]}])
    check(r.content, 'the result goes back', r)
try:
    client.messages.create(**{**ask, 'extra_body': {'temperature': -1}}, messages=plain)
    check(False, 'a refusal')
except anthropic.BadRequestError as e:
    check('temperature' in str(e), 'a refusal names its field', e)
check.end()

"""Requests that demand a form of the answer, answered by nano; TAP.  What comes back is read by
Python's own JSON and compared with the schema by hand."""
import json
import subprocess
import sys

SCHEMA = {'type': 'object', 'properties': {'name': {'type': 'string', 'maxLength': 40}, 'n': {'type': 'integer'},
          'ok': {'type': 'boolean'}, 'c': {'enum': ['a', 'b']}}, 'required': ['name', 'n', 'ok', 'c'],
          'additionalProperties': False}
TOOLS = [{'type': 'function', 'function': {'name': 'get_weather', 'parameters': {'type': 'object', 'properties': {
              'city': {'type': 'string'}, 'unit': {'type': 'string', 'enum': ['celsius', 'fahrenheit']}},
              'required': ['city']}}},
         {'type': 'function', 'function': {'name': 'set_level', 'parameters': {'type': 'object', 'properties': {
              'level': {'type': 'integer', 'minimum': 1, 'maximum': 10}, 'on': {'type': 'boolean'}},
              'required': ['level', 'on']}}}]
NAMED = {'type': 'function', 'function': {'name': 'set_level'}}


def ask(what, **more):
    return dict({'messages': [{'role': 'user', 'content': what}], 'temperature': 1.5, 'max_tokens': 400}, **more)


def schema(s, **more):
    return ask('Hello', response_format={'type': 'json_schema', 'json_schema': {'name': 'x', 'strict': True, 'schema': s}}, **more)


def is_document(m):
    v = json.loads(m['content'])
    return set(v) == set(SCHEMA['required']) and type(v['n']) is int and type(v['ok']) is bool and v['c'] in 'ab' and len(v['name']) <= 40


def is_call(m, names, most=99):
    for c in m['tool_calls']:
        a = json.loads(c['function']['arguments'])
        if c['function']['name'] == 'get_weather':
            good = isinstance(a['city'], str) and set(a) <= {'city', 'unit'} and a.get('unit', 'celsius') in ('celsius', 'fahrenheit')
        else:
            good = type(a['level']) is int and 1 <= a['level'] <= 10 and type(a['on']) is bool and len(a) == 2
        if not good or c['function']['name'] not in names:
            return False
    return m['content'] is None and 1 <= len(m['tool_calls']) <= most


BOTH = ('get_weather', 'set_level')
CASES = [(f'json_schema, seed {i}', schema(SCHEMA, seed=i), is_document) for i in range(6)]
CASES += [('json_schema behind thoughts', schema(SCHEMA, seed=7, enable_thinking=True), lambda m: m['reasoning'] and is_document(m))]
CASES += [('json_schema, ignore_eos and min_tokens', schema({'const': 1}, seed=1, ignore_eos=True, min_tokens=9), lambda m: m['content'] == '1')]
CASES += [('json_object', ask('Hello', temperature=0, response_format={'type': 'json_object'}), lambda m: isinstance(json.loads(m['content']), dict))]
CASES += [(f'required, seed {i}', ask('Hello', tools=TOOLS, tool_choice='required', seed=i), lambda m: is_call(m, BOTH)) for i in range(4)]
CASES += [('required behind thoughts', ask('Hello', tools=TOOLS, tool_choice='required', seed=2, enable_thinking=True), lambda m: is_call(m, BOTH))]
CASES += [('required, not parallel', ask('Hello', tools=TOOLS, tool_choice='required', seed=3, parallel_tool_calls=False), lambda m: is_call(m, BOTH, 1))]
CASES += [(f'named, seed {i}', ask('What is the weather in Paris?', tools=TOOLS, tool_choice=NAMED, seed=i), lambda m: is_call(m, ('set_level',), 1)) for i in range(3)]
CASES += [('none', ask('What is the weather in Paris?', temperature=0, tools=TOOLS, tool_choice='none'), lambda m: m['content'] and not m.get('tool_calls'))]
REFUSED = [('patternProperties', schema({'type': 'object', 'patternProperties': {'^x': {}}}), 'patternProperties'),
           ('a pattern in a tool', ask('x', tool_choice='required', tools=[{'type': 'function', 'function': {'name': 'f', 'parameters': {'properties': {'a': {'type': 'string', 'pattern': '(a+)+$'}}}}}]), 'properties.a.pattern')]


def main(srcdir):
    lines = ''.join(json.dumps(c[1]) + '\n' for c in CASES + REFUSED)
    p = subprocess.run(['./laguna-offload', 'batch', '-m', srcdir + '/models/nano', '-c', '2048', '-t', '2'], input=lines, capture_output=True, text=True)
    answers = [json.loads(x) for x in p.stdout.splitlines()]
    n = 0
    for (name, _, good), a in zip(CASES, answers):
        n += 1
        try:
            c = a['choices'][0]
            # An answer that ran out of tokens shows nothing.
            fine = c['finish_reason'] == 'length' or good(c['message'])
        except (KeyError, ValueError, TypeError):
            fine = False
        print('ok' if fine else 'not ok', n, '-', name)
        if not fine:
            print('#', json.dumps(a)[:900])
    for (name, _, word), a in zip(REFUSED, answers[len(CASES):]):
        n += 1
        print('ok' if word in a.get('error', {}).get('message', '') else 'not ok', n, '- refused:', name)
    cut = sum(a.get('choices', [{}])[0].get('finish_reason') == 'length' for a in answers)
    print('ok' if len(answers) == len(CASES) + len(REFUSED) and cut < 6 else 'not ok', n + 1, f'- {cut} of {len(answers)} ran out of tokens')
    print(f'1..{n + 1}')


main(sys.argv[1])

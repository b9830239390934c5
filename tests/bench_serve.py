"""What the server costs on top of its engine, on nano:
    bench_serve.py [PROGRAM [ROUNDS]]
Each figure is of rounds in which both sides take turns, because the machine may be busy.
A row: name, value, limit, ratio of the two, and whether the bar is met.  Exit 1 where one is not.

The client runs on the same cores and must not be part of the figure.  Where decoding is timed it
sleeps until the answer is whole, and when an answer ends is what the server's log says, not what
asking again and again finds out.
"""
import http.client
import json
import os
import queue
import re
import socket
import statistics
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HELLO = {'messages': [{'role': 'user', 'content': 'What is grep?'}], 'temperature': 0}
missed = []


def row(name, value, unit, limit, decimals=2):
    met = value <= limit
    missed.extend([name] * (not met))
    print(f'{name:52} {value:9.{decimals}f} {unit:3} {limit:9.{decimals}f} {value / limit:7.2f}  '
          f'{"met" if met else "missed"}', flush=True)


class Server:
    """A server in a process of its own, ended by close()."""

    def __init__(self, program, *options):
        self.process = subprocess.Popen(
            [program, 'serve', '-m', os.path.join(HERE, 'models/nano'), '--port', '0', '-v',
             '--log-format', 'json', *options],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.log = queue.Queue()        # of (when it came, a request's line)
        for line in self.process.stderr:
            found = re.search(r'listening on http://127\.0\.0\.1:(\d+)', line)
            if found:
                self.port = int(found.group(1))
                threading.Thread(target=self.read_log, daemon=True).start()
                return
        raise RuntimeError('the server did not begin')

    def read_log(self):
        for line in self.process.stderr:
            if '"event":"request"' in line:
                self.log.put((time.perf_counter(), json.loads(line)))

    def wait_for(self, end):
        """The next request in the log that ended so, and when."""
        while True:
            when, entry = self.log.get(timeout=60)
            if entry['end'] == end:
                return when, entry

    def close(self):
        self.process.terminate()
        self.process.wait(60)

    def ask(self, body, path='/v1/chat/completions'):
        c = http.client.HTTPConnection('127.0.0.1', self.port, timeout=120)
        c.request('POST', path, json.dumps(body), {'Content-Type': 'application/json'})
        r = json.loads(c.getresponse().read())
        c.close()
        return r

    def speed(self, body):
        """Tokens a second as the engine measures them, for a client that sleeps till the end."""
        s, lines = self.begin(body, 1 << 20)
        found = re.findall(rb'"predicted_per_second":([\d.]+)', lines.read())
        s.close()
        return float(found[-1])

    def begin(self, body, least=1):
        """A streamed answer that is on its way, as (socket, its lines); woken by `least` bytes."""
        data = json.dumps({'stream': True, **body}).encode()
        s = socket.create_connection(('127.0.0.1', self.port), timeout=120)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, least)
        s.sendall(b'POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n'
                  b'Content-Type: application/json\r\nContent-Length: %d\r\n\r\n' % len(data) + data)
        return s, s.makefile('rb')

    def stream(self, body):
        """Milliseconds to the first token, and the answer's timings."""
        start, first, timings = time.perf_counter(), None, None
        s, lines = self.begin(body)
        for line in lines:
            if not line.startswith(b'data: {'):
                continue
            if first is None and (b'"content":"' in line) and b'"content":""' not in line:
                first = (time.perf_counter() - start) * 1e3
            if b'"timings"' in line:
                timings = json.loads(line[6:])['timings']
        s.close()
        return first, timings


def first_token(server, rounds):
    """The engine's own is the prompt's time, which ends in the first token's logits."""
    over = []
    for i in range(rounds):
        body = {'messages': [{'role': 'user', 'content': f'{i} What is grep?'}], 'temperature': 0,
                'max_tokens': 16, 'ignore_eos': True}
        first, t = server.stream(body)
        over.append(first - t['prompt_ms'])
    row('time to first token over the engine\'s own', statistics.median(over), 'ms', 3)


def streaming(server, rounds):
    """The best rounds are compared: what else the machine does only makes a round slower."""
    body = {**HELLO, 'max_tokens': 400, 'ignore_eos': True}
    streamed, whole = [], []
    for _ in range(rounds):
        streamed.append(server.speed(body))
        whole.append(server.speed({**body, 'stream': False}))
    print(f'# whole {max(whole):.0f} tok/s, streamed {max(streamed):.0f}', flush=True)
    row('cost of streaming, of the speed of decoding', (max(whole) / max(streamed) - 1) * 100,
        '%', 2)


def second_turn(server):
    text = ' '.join(f'The river of the cloud number {i} is silver.' for i in range(520))
    messages = [{'role': 'user', 'content': text + ' What is grep?'}]
    ask = {'temperature': 0, 'max_tokens': 40}
    first = server.ask({**ask, 'messages': messages})
    messages += [first['choices'][0]['message'], {'role': 'user', 'content': 'What is tar?'}]
    second = server.ask({**ask, 'messages': messages})
    usage = second['usage']
    old = first['usage']['prompt_tokens'] + first['usage']['completion_tokens']
    again = old - usage['prompt_tokens_details']['cached_tokens']
    print(f'# {first["usage"]["prompt_tokens"]} tokens, then {usage["prompt_tokens"]}, of which '
          f'{usage["prompt_tokens_details"]["cached_tokens"]} kept', flush=True)
    row('old tokens read again in a second turn', max(0, again), '', 1, 0)


def many(server):
    idle = [socket.create_connection(('127.0.0.1', server.port)) for _ in range(256)]
    begun = [server.begin({**HELLO, 'max_tokens': 8}) for _ in range(32)]
    whole = sum(b'data: [DONE]' in lines.read() for _, lines in begun)
    for s in idle + [s for s, _ in begun]:
        s.close()
    row('of 32 streams beside 256 connections, broken', 32 - whole, '', 0.5, 0)


def slow_heads(server, rounds):
    """Time to the first token while 250 clients send a byte of their head now and then."""
    without, beside = [], []
    body = {**HELLO, 'max_tokens': 1}
    server.stream(body)
    for _ in range(rounds):
        without.append(server.stream(body)[0])
        slow = [socket.create_connection(('127.0.0.1', server.port)) for _ in range(250)]
        for s in slow:
            s.sendall(b'GET / HTTP/1.1\r\nX: ')
        for _ in range(2):
            for s in slow:
                s.sendall(b'y')
            beside.append(server.stream(body)[0])
        for s in slow:
            s.close()
        time.sleep(0.1)
    ratio = statistics.median(beside) / statistics.median(without)
    row('250 slow heads, later first token', (ratio - 1) * 100, '%', 5)


def cancel(server, rounds):
    """From the client's end to the engine's being free, in decode steps of that answer."""
    steps = []
    for _ in range(rounds):
        s, lines = server.begin({**HELLO, 'max_tokens': 4000, 'ignore_eos': True})
        first = None
        for line in lines:
            if line.startswith(b'data: {'):
                first = first or time.perf_counter()
                if time.perf_counter() - first > 0.3:
                    break
        start = time.perf_counter()
        lines.close()
        s.close()
        end, entry = server.wait_for('cancelled')
        steps.append((end - start) * entry['predicted_tokens'] / entry['predicted_seconds'])
    row('cancel, seen and freed, in decode steps', statistics.median(steps), '', 1)


def main(program='./laguna-offload', rounds='15'):
    rounds = int(rounds)
    server = Server(os.path.abspath(program), '--queue', '64')
    print(f'{"name":52} {"value":>9}     {"limit":>9} {"ratio":>7}  bar')
    try:
        server.ask({**HELLO, 'max_tokens': 8})
        first_token(server, rounds)
        streaming(server, rounds)
        second_turn(server)
        many(server)
        slow_heads(server, rounds)
        cancel(server, rounds)
    finally:
        server.close()
    sys.exit(bool(missed))


main(*sys.argv[1:3])

"""The server's page in headless Chromium, through its debugging port; no library needed.
page.py CHROMIUM URL PICTURE

The page must load by itself alone, without an error on its console, and a question typed into it
must get the answer that the API gives."""
import base64
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request

QUESTION = 'What is grep?'


class Socket:
    """As much of a websocket as a client needs that talks to a browser on this machine."""

    def __init__(self, url):
        host, port, path = re.match(r'ws://([^:/]+):(\d+)(/.*)', url).groups()
        self.s = socket.create_connection((host, int(port)), timeout=60)
        key = base64.b64encode(os.urandom(16)).decode()
        self.s.sendall((f'GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\n'
                        f'Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\n'
                        'Sec-WebSocket-Version: 13\r\n\r\n').encode())
        self.f = self.s.makefile('rb')
        assert b' 101 ' in self.f.readline()
        while self.f.readline().strip():
            pass

    def send(self, text):
        data, mask = text.encode(), os.urandom(4)
        n = len(data)
        head = struct.pack('!BB', 0x81, 0x80 | n) if n < 126 else \
            struct.pack('!BBH', 0x81, 0xfe, n) if n < 65536 else struct.pack('!BBQ', 0x81, 0xff, n)
        self.s.sendall(head + mask + bytes(b ^ mask[i % 4] for i, b in enumerate(data)))

    def receive(self):
        """The next whole message."""
        out = b''
        while True:
            first, n = self.f.read(2)
            if n == 126:
                n, = struct.unpack('!H', self.f.read(2))
            elif n == 127:
                n, = struct.unpack('!Q', self.f.read(8))
            out += self.f.read(n)
            if first & 0x80:
                return out.decode()


class Page:
    def __init__(self, url):
        self.socket, self.n, self.events = Socket(url), 0, []

    def call(self, method, **params):
        self.n += 1
        self.socket.send(json.dumps({'id': self.n, 'method': method, 'params': params}))
        while True:
            m = json.loads(self.socket.receive())
            if m.get('id') == self.n:
                assert 'error' not in m, m
                return m['result']
            self.events.append(m)

    def value(self, expression):
        return self.call('Runtime.evaluate', expression=expression)['result'].get('value')

    def wait(self, expression, seconds=60):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.value(expression):
                return True
            time.sleep(0.2)
        return False


def check(good, what, seen=None):
    print('ok -' if good else 'not ok -', what, '' if good else repr(seen)[:600], flush=True)
    return not good


def answer(url):
    body = json.dumps({'messages': [{'role': 'user', 'content': QUESTION}], 'temperature': 0})
    ask = urllib.request.Request(url + '/v1/chat/completions', body.encode(),
                                 {'Content-Type': 'application/json'})
    with urllib.request.urlopen(ask, timeout=60) as r:
        return json.load(r)['choices'][0]['message']['content']


def target(profile):
    """The address of the page's debugger, once the browser has begun."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            with open(os.path.join(profile, 'DevToolsActivePort'), encoding='ascii') as f:
                port = int(f.readline())
            with urllib.request.urlopen(f'http://127.0.0.1:{port}/json', timeout=20) as r:
                return next(t for t in json.load(r) if t['type'] == 'page')['webSocketDebuggerUrl']
        except (OSError, ValueError, StopIteration):
            time.sleep(0.2)
    raise TimeoutError('the browser did not begin')


def visit(page, url, picture):
    for domain in ('Page', 'Runtime', 'Network', 'Log'):
        page.call(domain + '.enable')
    page.call('Emulation.setDeviceMetricsOverride', width=1100, height=760, deviceScaleFactor=1,
              mobile=False)
    # Fixed, so that the answer and the picture are those of every run.
    page.call('Page.addScriptToEvaluateOnNewDocument', source='''
        const asked = window.fetch;
        window.fetch = (path, o) => {
          if (o && o.body) o.body = JSON.stringify({ ...JSON.parse(o.body), temperature: 0 });
          return asked(path, o);
        };''')
    page.call('Page.navigate', url=url + '/')
    failed = check(page.wait("document.querySelectorAll('#facts tr').length > 3"),
                   'the page loads and shows what the server does', page.events)
    page.value(f"document.getElementById('say').focus()")
    page.call('Input.insertText', text=QUESTION)
    for kind in ('keyDown', 'keyUp'):
        page.call('Input.dispatchKeyEvent', type=kind, key='Enter', code='Enter', text='\r',
                  windowsVirtualKeyCode=13)
    page.wait("document.querySelector('#log .note')")
    said = page.value("(document.querySelector('#log .assistant > span') || {}).textContent")
    failed += check(said and said == answer(url), 'a question typed gets its answer', said)
    time.sleep(2)
    page.value("document.getElementById('log').scrollTop = 0")
    with open(picture, 'wb') as f:
        f.write(base64.b64decode(page.call('Page.captureScreenshot', format='png')['data']))
    failed += check(os.path.getsize(picture) < 200000, 'a picture below 200 kB')
    return failed + judge(page.events, url)


def judge(events, url):
    """No request but to the server, and nothing that the console calls an error."""
    asked = [e['params']['request']['url'] for e in events
             if e.get('method') == 'Network.requestWillBeSent']
    outside = [u for u in asked if not u.startswith((url + '/', 'data:'))]
    wrong = [e['params'] for e in events
             if e.get('method') == 'Runtime.exceptionThrown' or
             e.get('method') == 'Log.entryAdded' and e['params']['entry']['level'] == 'error' or
             e.get('method') == 'Runtime.consoleAPICalled' and e['params']['type'] == 'error']
    return check(asked and not outside, f'{len(asked)} requests, all to the server', outside) + \
        check(not wrong, 'no error on the console', wrong)


def main(chromium, url, picture):
    profile = tempfile.mkdtemp(prefix='laguna-page.')
    browser = subprocess.Popen(
        [chromium, '--headless=new', '--no-sandbox', '--disable-gpu', '--no-first-run',
         '--disable-background-networking', '--disable-component-update', '--disable-sync',
         '--disable-dev-shm-usage', '--remote-debugging-port=0', '--user-data-dir=' + profile,
         'about:blank'], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL)
    try:
        return visit(Page(target(profile)), url, picture)
    finally:
        browser.terminate()
        try:
            browser.wait(20)
        except subprocess.TimeoutExpired:
            browser.kill()
            browser.wait()
        shutil.rmtree(profile, ignore_errors=True)


sys.exit(main(*sys.argv[1:4]) > 0)

"""What the scripts in this folder share: checks that print a line each, and nano's own tools."""
import subprocess
import sys

SHELL = {'type': 'object', 'properties': {'command': {'type': 'string'}}, 'required': ['command']}
FILE = {'type': 'object', 'properties': {'path': {'type': 'string'}}, 'required': ['path']}
TOOLS = [('run_shell', 'Run a shell command and return its output.', SHELL),
         ('read_file', 'Read a text file.', FILE)]


class Checks:
    def __init__(self):
        self.failed = 0

    def __call__(self, good, what, seen=None):
        print('ok -' if good else 'not ok -', what, flush=True)
        if not good:
            self.failed += 1
            print('#', repr(seen)[:1000], flush=True)
        return good

    def end(self):
        sys.exit(self.failed > 0)


def run_shell(command):
    done = subprocess.run(['sh', '-c', command], capture_output=True, text=True, timeout=20,
                          stdin=subprocess.DEVNULL, check=False)
    return done.stdout + done.stderr


def read_file(path):
    with open(path, encoding='utf-8') as f:
        return f.read()

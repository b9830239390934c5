"""What the engine does with a GPU, beside the limits that the machine has in the same run:
    bench_engine_gpu.py [OPTION]... [STEP]...          (make bench-gpu BENCH_GPU='...')
A row, as make bench has them: name, value, limit, ratio, bar.  bench-gpu.json keeps the last row
of each name.  A row that misses its bar is no failure; a step that cannot run is one.

Without a step: kernels start resident prefill cpu skewed even, which takes 40 GB in --dir.
near-full: a model that fills RAM and a 24 GB card, and the drive too: 60 GB in --dir.
near-full-24-32, near-full-24-80 and near-full-card are its steps.  make-skewed, make-even and
make-near-full write models and do no more: with --models, for runs that may not take long.

Kernels alone are measured by bench_gpu, which appends rows to the FILE after its --json.  What a
step of the GPU costs without routed experts is a step with all of them in VRAM, less their bytes
at the card's copy rate.
"""
import argparse
import functools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
NANO = os.path.join(os.path.dirname(HERE), 'models/nano')
KINDS = {                               # what mkmodel is told besides --model
    'skewed': ['--layers', '24', '--skew', '0.65'],
    'even': ['--layers', '24', '--skew', '0.32'],
    'near-full': ['--layers', '40', '--skew', '0.65'],
}
MIXED = ['kernels', 'start', 'resident', 'prefill', 'cpu', 'skewed', 'even']
NEAR_FULL = {
    'near-full-24-32': ['--vram', '24G', '--ram', '32G'],
    'near-full-24-80': ['--vram', '24G', '--ram', '80G'],
    'near-full-card': [],
}
SHM, SHM_BYTES = '/dev/shm', 40e9


def per(amount, rate):
    """None where the rate could not be measured."""
    return amount / rate if rate and amount is not None else None


def say(words):
    print(f'# {words}', flush=True)


class Rows:
    """The table, and the file of all rows, which is whole after each."""

    def __init__(self, path):
        self.path, self.missed, self.count = path, 0, 0
        print(f'{"":58} {"value":>10} {"":8} {"limit":>10} {"ratio":>6} {"bar":>7}', flush=True)

    def add(self, name, value, unit, limit, sense='', bar=None, ratio=None):
        if ratio is None:
            ratio = per(value, limit)
        ok = bar is None or (ratio is not None and
                             (ratio >= bar if sense == '>=' else ratio <= bar))
        self.count += 1
        self.missed += not ok
        shown = [f'{x:{w}}' if x is not None else f'{"-":>{w.split(".")[0]}}'
                 for x, w in ((value, '10.4g'), (limit, '10.4g'), (ratio, '6.3f'))]
        judged = '' if bar is None else f' {sense} {bar:.2f} {"ok" if ok else "MISSED"}'
        print(f'{name:58} {shown[0]} {unit:8} {shown[1]} {shown[2]}{judged}', flush=True)
        self.keep([{'name': name, 'value': value, 'unit': unit, 'limit': limit, 'ratio': ratio,
                    'bar': bar, 'sense': sense, 'ok': ok}])

    def keep(self, new):
        old = []
        if os.path.exists(self.path):
            with open(self.path, encoding='utf-8') as f:
                old = json.load(f)
        names = {r['name'] for r in new}
        rows = [r for r in old if r['name'] not in names] + new
        with open(self.path + '.new', 'w', encoding='utf-8') as f:
            f.write('[\n' + ',\n'.join(map(json.dumps, rows)) + '\n]\n')
        os.replace(self.path + '.new', self.path)


class Shape:
    """What config.json says of the work of a token."""

    def __init__(self, model):
        with open(os.path.join(model, 'config.json'), encoding='utf-8') as f:
            self.c = json.load(f)
        self.layers = self.c['num_hidden_layers']
        self.sparse = self.c['mlp_layer_types'].count('sparse')

    def product_flops(self):
        """Of a token of a prompt, but for its attention and the head."""
        c = self.c
        macs = 0
        for heads, mlp in zip(c['num_attention_heads_per_layer'], c['mlp_layer_types']):
            macs += c['head_dim'] * (2 * heads + 2 * c['num_key_value_heads']) + heads
            if mlp == 'sparse':
                macs += c['num_experts'] + 3 * c['shared_expert_intermediate_size']
                macs += 3 * c['moe_intermediate_size'] * c['num_experts_per_tok']
            else:
                macs += 3 * c['intermediate_size']
        return 2 * macs * c['hidden_size']

    def step_bytes(self, dense_bytes, depth):
        """Dense weights and q8 keys and values of a token; of the embedding it reads a row."""
        c = self.c
        rows = sum(depth if t == 'full_attention' else min(depth, c['sliding_window'])
                   for t in c['layer_types'])
        kv = rows * c['num_key_value_heads'] * 2 * (c['head_dim'] + 2 * c['head_dim'] // 32)
        return dense_bytes - 2 * c['vocab_size'] * c['hidden_size'] + kv


class Bench:
    def __init__(self, o):
        self.o, self.rows, self.table = o, Rows(o.json), []
        self.work = tempfile.mkdtemp(prefix='laguna-bench-gpu.', dir=o.dir)
        self.models = o.models or self.work
        os.makedirs(self.models, exist_ok=True)
        self.env = {**os.environ, 'LAGUNA_CONFIG': os.devnull,
                    'XDG_CACHE_HOME': os.path.join(self.models, 'cache'),
                    'XDG_STATE_HOME': os.path.join(self.models, 'state')}

    def close(self):
        shutil.rmtree(self.work, ignore_errors=True)

    def run(self, *command, allowed=(0,)):
        """Its stdout.  What it says on stderr is seen."""
        start = time.monotonic()
        done = subprocess.run(command, env=self.env, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, text=True, check=False)
        say(f'{" ".join(command)}: {time.monotonic() - start:.1f} s')
        if done.returncode not in allowed:
            raise RuntimeError(f'{command[0]} ended with {done.returncode}')
        return done.stdout

    # --- models and what the machine gives ---------------------------------------------------

    @functools.lru_cache(None)
    def model(self, kind):
        """Its directory.  There is room for one model of ours at a time."""
        path = os.path.join(self.models, kind)
        if os.path.exists(os.path.join(path, 'config.json')):
            return path
        if not self.o.models:
            for other in KINDS:
                shutil.rmtree(os.path.join(self.work, other), ignore_errors=True)
        # Written beside, so that half a model is not taken for one.
        shutil.rmtree(path + '.new', ignore_errors=True)
        self.run(self.o.mkmodel, '--like', NANO, '--out', path + '.new', *KINDS[kind],
                 *self.o.model.split())
        os.rename(path + '.new', path)
        return path

    @functools.lru_cache(None)
    def shape(self, kind):
        return Shape(self.model(kind))

    @functools.lru_cache(None)
    def plan(self, kind):
        """plan --json, the machine measured now.  That the model does not fit is an answer."""
        device = [] if self.o.device == 'ref' else ['--device', self.o.device]
        plan = json.loads(self.run(self.o.program, 'plan', '-m', self.model(kind), '--json',
                                   '--remeasure', *device, allowed=(0, 3)))
        m, gpu = plan['machine'], self.gpu(plan)
        say(f'RAM {m["ram_read_gbps"]:.1f} GB/s, drive {m["drive_read_gbps"]:.2f}, '
            f'VRAM {gpu.get("vram_gbps") or 0:.0f}, host to device {gpu.get("h2d_gbps") or 0:.1f}')
        return plan

    def gpu(self, plan):
        gpus = plan['machine']['gpus']
        at = int(self.o.device.partition(':')[2] or 0)
        return gpus[at] if at < len(gpus) else {}

    def rate(self, kind, name):
        """Bytes a second of 'ram_read', 'drive_read', 'vram' or 'h2d', or None."""
        plan = self.plan(kind)
        gbps = {**plan['machine'], **self.gpu(plan)}.get(name + '_gbps')
        return gbps * 1e9 if gbps else None

    def quarter(self, kind):
        """Bytes of VRAM that seat a quarter of the experts."""
        plan = self.plan(kind)
        count = sum(plan['experts'].values())
        slot = plan['bytes']['vram_slot'] or -(-plan['bytes']['experts'] // count)
        return count // 4 * slot

    # --- the program -------------------------------------------------------------------------

    def ask(self, kind, *options):
        """The rows of bench --json."""
        return json.loads(self.run(self.o.program, 'bench', '-m', self.model(kind), '--device',
                                   self.o.device, '--json', *options,
                                   '--state-dir', os.path.join(self.models, 'state-' + kind)))

    def context(self, tokens):
        return ['-c', str(max(8192, -(-tokens // 1024) * 1024))]

    def learn(self, kind, *options):
        """The router's statistics, once for each model: they choose seats, and predict."""
        if not os.path.isdir(os.path.join(self.models, 'state-' + kind)):
            self.ask(kind, '-n', str(2 * self.o.tokens), '-d', str(4 * self.o.depth), '-r', '1',
                     *self.context(4 * self.o.depth + 2 * self.o.tokens), *options)

    def decode(self, kind, *options):
        """A row of decoding at the usual depth, after the machine was measured."""
        self.plan(kind)
        self.learn(kind)
        r = self.ask(kind, '-n', str(self.o.tokens), '-d', str(self.o.depth),
                     '-r', str(self.o.rounds), *self.context(self.o.depth + self.o.tokens),
                     *options)[0]
        say(f'{r["tps_mean"]:.2f} tok/s; {100 * r["hit_vram"]:.1f} % of the experts in VRAM, '
            f'{100 * r["hit_ram"]:.1f} in RAM, {100 * r["uploaded"]:.1f} fetched; of the time the '
            f'CPU computes {100 * r["cpu_share"]:.1f} %, and waits for the GPU '
            f'{100 * r["gpu_wait"]:.1f}')
        return r

    @functools.lru_cache(None)
    def seated(self, kind):
        """Decoding with all experts in VRAM."""
        r = self.decode(kind)
        if r['hit_vram'] < 0.999:
            say('not all experts are in VRAM: the card is too small for these figures')
        return r

    def base(self, kind):
        """Seconds of a step without its routed experts, or None."""
        r = self.seated(kind)
        experts = per(r['bytes_per_token']['vram'], self.rate(kind, 'vram'))
        return None if experts is None else 1 / r['tps_mean'] - experts

    def add_prediction(self, name, r, bar):
        """plan within 15 % of what was achieved."""
        off = per(abs((r['predicted_tps'] or 0) - r['tps_mean']), r['tps_mean'])
        self.rows.add(name + ', predicted', r['tps_mean'], 'tok/s', r['predicted_tps'], '<=', bar,
                      off if r['predicted_tps'] else None)

    # --- steps -------------------------------------------------------------------------------

    def kernels(self):
        """bench_gpu has rows of its own."""
        rows = os.path.join(self.work, 'kernels')
        print(self.run(self.o.kernels, '--json', rows), end='')
        with open(rows, encoding='utf-8') as f:
            self.rows.keep([json.loads(line) for line in f])

    def start(self):
        """From exec to "listening", with the dense weights where they belong."""
        model, plan = self.model('skewed'), self.plan('skewed')
        dense, drive = plan['bytes']['dense'], self.rate('skewed', 'drive_read')
        times = []
        for _ in range(self.o.rounds):
            for name in os.listdir(model):      # what the page cache has is no drive
                fd = os.open(os.path.join(model, name), os.O_RDONLY)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(fd)
            times.append(self.time_start(model))
        self.rows.add('start, dense weights resident', statistics.median(times), 's',
                      dense / drive + 3, '<=', 1)

    def time_start(self, model):
        start = time.monotonic()
        said, ready = [], False
        with subprocess.Popen([self.o.program, 'serve', '-m', model, '--port', '0', '--device',
                               self.o.device, *self.context(0)], env=self.env,
                              stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as p:
            for line in p.stderr:
                said.append(line)
                ready = 'listening on' in line
                if ready:
                    break
            seconds = time.monotonic() - start
            p.kill()                    # nobody is served: what it read so far need not be kept
        if not ready:
            raise RuntimeError(f'serve was never ready: {"".join(said)}')
        return seconds

    def resident(self, kind='skewed'):
        r, shape, depth, deep = self.seated(kind), self.shape(kind), self.o.depth, self.o.deep
        name = f'decode at {depth}, all resident'
        moved = shape.step_bytes(self.plan(kind)['bytes']['dense'], depth)
        moved += r['bytes_per_token']['vram']
        vram = self.rate(kind, 'vram')
        self.rows.add(name, 1e6 / r['tps_mean'] / shape.layers, 'us/layer', 90, '<=', 1)
        self.rows.add(f'{name}, {shape.layers} layers', r['tps_mean'], 'tok/s',
                      1e6 / 90 / shape.layers, '>=', 1)
        self.rows.add(name + ', bytes', moved * r['tps_mean'] * 1e-9, 'GB/s', per(vram, 1e9))
        self.add_prediction(name, r, 0.15)
        far = self.ask(kind, '-n', str(self.o.tokens), '-d', str(deep), '-r', '1',
                       *self.context(deep + self.o.tokens))[0]
        self.rows.add(f'decode at {deep} beside {depth}, all resident', far['tps_mean'], 'tok/s',
                      r['tps_mean'], '>=', 0.88)

    def read(self, kind, *options):
        return self.ask(kind, '-p', str(self.o.prompt), '-r', str(self.o.rounds),
                        *self.context(self.o.prompt), *options)[0]

    def prefill(self, kind='skewed'):
        n, plan = self.o.prompt, self.plan(kind)
        here, away = self.read(kind), self.read(kind, '--vram-experts', '0')
        flops = self.shape(kind).product_flops() * here['tps_mean'] * 1e-12
        seconds = n / here['tps_mean']
        across = per(plan['bytes']['experts'], self.rate(kind, 'h2d'))
        limit = None if across is None else max(across, seconds)
        say(f'{here["tps_mean"]:.0f} tok/s all resident, {away["tps_mean"]:.0f} with nothing')
        gmacs = self.gpu(plan).get('gmacs')
        # Attention is in the time and not in the products: what they reach alone is more.
        self.rows.add(f'prefill of {n}, all resident', flops, 'TFLOP/s',
                      2e-3 * gmacs if gmacs else None, '>=', 0.2)
        self.rows.add(f'prefill of {n}, nothing resident', n / away['tps_mean'], 's', limit, '<=',
                      1.1)

    def cpu(self, kind='skewed'):
        """All experts on the CPU: what it reads while it computes, and all else beside the GPU's
        own work is hand-over."""
        r = self.decode(kind, '--vram-experts', '0', '--upload-share', '0')
        ram, base = self.rate(kind, 'ram_read'), self.base(kind)
        seconds, share = 1 / r['tps_mean'], r['cpu_share']
        self.rows.add('decode, all experts on the CPU, while it computes',
                      per(r['bytes_per_token']['ram'] * 1e-9, seconds * share), 'GB/s', ram * 1e-9,
                      '>=', 0.8)
        over = None if base is None else (seconds * (1 - share) - base) / self.shape(kind).sparse
        self.rows.add('hand-over to the CPU and back, beyond its computing',
                      None if over is None else over * 1e6, 'us/layer', 10, '<=', 1)
        self.add_prediction('decode, all experts on the CPU', r, None)
        both = self.decode(kind, '--vram-experts', '0')
        self.rows.add('decode, no expert resident, uploads allowed', both['tps_mean'], 'tok/s',
                      r['tps_mean'])

    def mixed(self, kind, *options, name=''):
        """1.05 x (attention and router + the larger of the two experts' times) + 10 us a layer."""
        name = f'decode, a quarter of the experts resident, {kind}{name}'
        r = self.decode(kind, '--vram-experts', str(self.quarter(kind)), *options)
        base, sparse = self.base(kind), self.shape(kind).sparse
        limit = None
        if base is not None:
            longer = max(r['bytes_per_token']['vram'] / self.rate(kind, 'vram'),
                         r['bytes_per_token']['ram'] / self.rate(kind, 'ram_read'))
            limit = 1 / (1.05 * (base + longer) + 10e-6 * sparse)
        self.rows.add(name, r['tps_mean'], 'tok/s', limit, '>=', 1)
        self.rows.add(name + ', hits', 100 * r['hit_vram'], '%', 100)
        self.add_prediction(name, r, 0.15)

    def skewed(self):
        self.mixed('skewed')

    def even(self):
        self.mixed('even')
        self.mixed('even', '--upload-share', '0', name=', no uploads')

    def near_full(self, step):
        kind, options = 'near-full', NEAR_FULL[step]
        self.plan(kind)
        self.learn(kind, *options)
        prompt, decode = self.ask(
            kind, '-p', str(2 * self.o.depth), '-n', str(self.o.tokens), '-d', str(self.o.depth),
            '-r', str(self.o.rounds), *self.context(3 * self.o.depth + self.o.tokens), *options)
        drive = decode['bytes_per_token']['nvme'] * decode['tps_mean'] * 1e-9
        hits = 100 * decode['hit_vram'], 100 * decode['hit_ram']
        self.add_prediction(f'{step}, decode', decode, 0.15)
        self.add_prediction(f'{step}, prefill', prompt, None)
        self.rows.add(f'{step}, experts in VRAM', hits[0], '%', 100)
        self.rows.add(f'{step}, experts in RAM', hits[1], '%', 100)
        self.rows.add(f'{step}, from the drive', drive, 'GB/s',
                      self.rate(kind, 'drive_read') * 1e-9)
        self.table.append([step, decode['tps_mean'], decode['predicted_tps'], prompt['tps_mean'],
                           prompt['predicted_tps'], *hits, drive, 100 * decode['io_wait']])

    def show_table(self):
        if not self.table:
            return
        print(f'\n{"":16} {"decode":>9} {"predicted":>9} {"prefill":>9} {"predicted":>9} '
              f'{"VRAM %":>7} {"RAM %":>7} {"drive GB/s":>10} {"wait %":>7}')
        for step, *v in self.table:
            cell = [f'{x:{w}.{d}f}' if x is not None else f'{"-":>{w}}'
                    for x, w, d in zip(v, (9, 9, 9, 9, 7, 7, 10, 7), (2, 2, 1, 1, 1, 1, 2, 1))]
            print(f'{step:16} {" ".join(cell)}')

    def step(self, name):
        if name.startswith('make-'):
            self.model(name.removeprefix('make-'))
        elif name in NEAR_FULL:
            self.near_full(name)
        else:
            getattr(self, name)()


def default_dir():
    """Memory where there is enough, since what is measured is not the drive."""
    if os.environ.get('BENCH_DIR'):
        return os.environ['BENCH_DIR']
    s = os.statvfs(SHM) if os.path.isdir(SHM) else None
    return SHM if s and s.f_bavail * s.f_frsize >= SHM_BYTES else tempfile.gettempdir()


def options():
    p = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    p.add_argument('--program', default='./laguna-offload')
    p.add_argument('--kernels', default='tests/bench_gpu', metavar='PROGRAM')
    p.add_argument('--mkmodel', default='tests/mkmodel', metavar='PROGRAM')
    p.add_argument('--device', default='cuda:0', help='for --device of the program')
    p.add_argument('--dir', default=default_dir(), help='for models that go at the end')
    p.add_argument('--models', default=os.environ.get('BENCH_MODEL_DIR') or None, metavar='DIR',
                   help='take the models skewed, even and near-full from there; what is missing '
                   'is made there, and stays')
    p.add_argument('--model', default='--preset s21 --format w4a16 --shards 8 --seed 1',
                   metavar='OPTIONS', help='what mkmodel is told, after what makes the kind')
    p.add_argument('--json', default='bench-gpu.json', metavar='FILE')
    p.add_argument('--depth', type=int, default=1024)
    p.add_argument('--deep', type=int, default=32768)
    p.add_argument('--prompt', type=int, default=8192)
    p.add_argument('--tokens', type=int, default=128)
    p.add_argument('--rounds', type=int, default=3)
    p.add_argument('steps', nargs='*', metavar='STEP')
    o = p.parse_args()
    known = {*MIXED, *NEAR_FULL, 'near-full', *('make-' + kind for kind in KINDS)}
    for wrong in set(o.steps) - known:
        p.error(f'{wrong}: the steps are {" ".join(sorted(known))}')
    o.steps = [s for step in o.steps or MIXED
               for s in (NEAR_FULL if step == 'near-full' else [step])]
    return o


def main():
    o = options()
    b, failed = Bench(o), []
    try:
        for name in o.steps:
            try:
                b.step(name)
            except (RuntimeError, OSError, ValueError, KeyError) as e:
                say(f'{name}: {e}')
                failed.append(name)
    finally:
        b.close()
    b.show_table()
    print(f'{b.rows.count} rows in {o.json}, {b.rows.missed} missed')
    if failed:
        sys.exit('could not run: ' + ' '.join(failed))


main()

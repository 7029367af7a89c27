"""What must work wherever chunkform is installed: run by an environment's Python, in a folder of its own; prints `works`.

Nothing but chunkform and what it depends on is here: no pytest, and nothing of the checkout.
"""

import subprocess
import sys
from pathlib import Path

import torch

import chunkform
from chunkform.generated import gated_delta_rule, mesa, softmax_attention
from chunkform.runtime.nn import Mixer

SPEC = '''"""A decayed sum."""

from chunkform.spec.language import Recurrence

r = Recurrence("decayed_sum")
d, e = r.dims("d e")
(q, k), v, lam = r.inputs("q k", d), r.inputs("v", e), r.decay("lam")
S = r.state("S", d, e)
r.update(S, lam * S.prev + k * v.T)
r.output("o", S.next.T * q)
t, SS, do, dq = r.quantities("t S do dq")
r.claim("dq", dq(t), SS(t) * do(t))
'''


def command(*words: str) -> str:
    done = subprocess.run([sys.executable, "-m", "chunkform", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def main(checkout: str) -> None:
    assert Path(sys.prefix) in Path(chunkform.__file__).parents, chunkform.__file__
    assert checkout not in sys.path
    own = {m.__file__ for n, m in sys.modules.items() if n.startswith("chunkform") and getattr(m, "__file__", None)}
    assert all(Path(sys.prefix) in Path(f).parents for f in own), own

    torch.manual_seed(0)
    q, k, v = (x.requires_grad_() for x in torch.randn(3, 1, 70, 2, 8))
    beta, log = torch.rand(1, 70, 2), -torch.rand(1, 70, 2)
    gated_delta_rule(q, k / 3, v, beta, log).o.square().mean().backward()
    softmax_attention(q, k, v, causal=True).square().mean().backward()
    mesa(q, k, log, torch.ones(2)).o.square().mean().backward()
    assert all(torch.isfinite(x.grad).all() for x in (q, k, v))
    with torch.no_grad():
        layer = Mixer("kimi_delta_attention", width=16, heads=2)
        _, cache = layer(torch.randn(1, 5, 16), output_cache=True)
        assert layer.step(torch.randn(1, 16), cache)[0].shape == (1, 16)

    Path("decayed_sum.py").write_text(SPEC)
    op = chunkform.compile("decayed_sum.py")
    assert op(q, k, v, log, output_final_state=True).final_state.shape == (1, 2, 8, 8)
    assert chunkform.check("decayed_sum.py", quick=True, device="cpu").ok
    assert chunkform.verify("decayed_sum.py").ok

    assert command("--version") == f"chunkform {chunkform.__version__}\n"
    assert "gated_delta_rule" in command("list", "delta")
    assert "dq_t = S_t do_t" in str(chunkform.explain("decayed_sum.py"))
    command("build", "decayed_sum.py", "--out", "ops")
    print("works")


if __name__ == "__main__":
    main(sys.argv[1])

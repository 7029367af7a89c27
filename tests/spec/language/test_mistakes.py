"""Each mistake in a spec gets one error, which names the file, the line, the term, and what to write instead."""

from __future__ import annotations

from pathlib import Path

import pytest
from shared.spec_files import breaking_nothing

from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.errors import (
    AttributeError_,
    CausalityError,
    ChunkformError,
    DimensionError,
    FunctionError,
    LoadError,
    NameError_,
    SpecError,
)
from chunkform.spec.language import Recurrence, load

HEAD = """\
from chunkform.spec.language import *
import sympy
r = Recurrence("bad")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
beta = r.inputs("beta")
lam = r.decay("lam")
S = r.state("S", d, e)
"""
TAIL = """
r.update(S, lam * S.prev + k * v.T)
r.output("o", S.next.T * q)
"""
HEAD_LINES = HEAD.count("\n")

# (what is wrong, the lines, the error, what its message says). The last line that isn't part of TAIL is the wrong one.
MISTAKES: list[tuple[str, str, type[ChunkformError], tuple[str, ...]]] = [
    # attributes
    ("a method that is set", "r.dims = 3", AttributeError_, ("dims of a recurrence can't be set", "`r.dims(..)`")),
    ("a method that is deleted", "del r.output", AttributeError_, ("output of a recurrence can't be set",)),
    ("what is declared, set", "r.states = []", AttributeError_, ("states of a recurrence can't be set",)),
    ("a name that is set", "r.name = 'x'", AttributeError_, ("name of a recurrence can't be set",)),
    ("an attribute that there isn't", "r.soruce = 'x'", AttributeError_, ("no 'soruce'", "did you mean source")),
    ("a description that is no text", "r.doc = 3", SpecError, ("the doc of bad must be a string, got 3",)),
    ("a state that is set", "S.next = lam * S.prev", AttributeError_, ("S.next can't be set", "r.update(S, ..)")),
    ("a state before the step that is set", "S.prev = 0", AttributeError_, ("S.prev can't be set", "initial=..")),
    ("an attention's method that is set", "Attention('a').dims = 3", AttributeError_, ("of an attention can't be set",)),
    ("a program's part that is set", "Program('p').solves = []", AttributeError_, ("solves of a program can't be set",)),
    # dims
    ("sum of a matrix and its transpose's shape", "r.update(S, S.prev + v * k.T)", DimensionError,
     ("S.prev (d x e)", "v * k.T (e x d)", ".T")),
    ("sum of a matrix and a vector", "r.update(S, S.prev + k)", DimensionError, ("S.prev (d x e)", "k (d x 1)")),
    ("a power of a scalar as others write it", "r.update(S, beta^2 * S.prev)", SpecError, ("beta ** 2",)),
    ("a complex number", "r.output('x', sympy.exp(sympy.I * beta) * q)", SpecError,
     ("the output x must be real, got the complex ", "write real(..) or imag(..)", "complex=True")),
    ("a complex number that isn't SymPy's", "r.update(S, 1j * S.prev)", SpecError, ("the update of S must be real", "real(..)")),
    ("a running sum", "k.cumsum()", SpecError, ("'cumsum'", "is a state")),
    ("an outer product the wrong way round", "r.update(S, S.prev + k.T * v)", DimensionError,
     ("k.T (1 x d)", "`k * v.T`")),
    ("rows divided by a vector", "r.update(S, S.prev / k)", DimensionError, ("scale rows write `diag(1/k) * S.prev`",)),
    ("columns divided by a vector", "r.update(S, S.prev / v)", DimensionError, ("`S.prev * diag(1/v)`",)),
    ("outer product without a transpose", "r.update(S, S.prev + k * v)", DimensionError, ("k (d x 1)", "`k * v.T`")),
    ("inner product without a transpose", "r.update(S, k * q)", DimensionError, ("`k.T * q`", "`hadamard(k, q)`")),
    ("vector decay without diag", "a = r.decay('a', d); r.update(S, a * S.prev)", DimensionError, ("`diag(a) * S.prev`",)),
    ("read without a transpose", "r.output('x', S.prev * q)", DimensionError, ("S.prev (d x e)", "`S.prev.T * q`")),
    ("update of another shape", "r.update(S, q * q.T)", DimensionError, ("the update of S", "q * q.T (d x d)", "d x e")),
    ("update by a scalar", "r.update(S, beta)", DimensionError, ("the update of S is a scalar", "d x e")),
    ("scalar plus square matrix", "x = k * q.T + 1", DimensionError, ("the scalar 1", "k * q.T (d x d)", "`eye(d)`")),
    ("scalar minus square matrix", "x = beta - k * q.T", DimensionError, ("the scalar beta", "`eye(d)`", "`ones(d, d)`")),
    ("identity of two dims", "x = eye(d, e)", DimensionError, ("eye takes one dim", "ones(d, e)")),
    ("ones of three dims", "x = ones(d, e, e)", DimensionError, ("ones takes one dim or two",)),
    ("rotation of a vector", "x = r.let('x', rotate(k, q))", SpecError, ("x uses rotate", "Attention", "cos and sin")),
    ("dot of two dims", "x = dot(k, v)", DimensionError, ("k.T (1 x d)", "v (e x 1)")),
    ("hadamard of two dims", "x = hadamard(k, v)", DimensionError, ("k (d x 1)", "v (e x 1)")),
    ("hadamard of a vector and a matrix", "x = hadamard(k, S.prev)", DimensionError, ("write `diag(k) * S.prev`",)),
    ("hadamard of a row and a matrix", "x = hadamard(S.prev, v.T)", DimensionError, ("write `S.prev * diag(v)`",)),
    ("hadamard of a sum and a vector", "x = hadamard(v, S.prev + k * v.T)", DimensionError,
     ("write `(S.prev + k * v.T) * diag(v)`",)),
    ("hadamard with a scalar", "x = hadamard(beta, k)", DimensionError, ("the scalar beta", "use *")),
    ("quotient of two dims", "x = k / v", DimensionError, ("k (d x 1)", "v (e x 1)")),
    ("division by a matrix", "x = 1 / S.prev", DimensionError, ("S.prev (d x e)", "no inverse", "x / y, A, B)")),
    ("diag of a scalar", "x = diag(beta)", DimensionError, ("diag takes a vector", "the scalar beta")),
    ("diag of a matrix", "x = diag(S.prev)", DimensionError, ("diag takes a vector", "the matrix S.prev (d x e)")),
    ("softmax of a scalar", "x = softmax(beta)", DimensionError, ("softmax takes a vector", "the scalar beta")),
    ("Python's max of two vectors", "x = max(q, k)", SpecError, ("k is compared", "Max(a, b)")),
    ("a comparison with a number", "x = (k > 0) * k", SpecError, ("k is compared", "relu")),
    ("norm of a matrix", "x = norm(S.prev)", DimensionError, ("norm takes a vector", "S.prev (d x e)")),
    ("normalize of a scalar", "x = normalize(beta)", DimensionError, ("normalize takes a vector", "beta")),
    ("transpose of a scalar", "x = beta.T", DimensionError, ("beta is a scalar",)),
    ("foreign dim", "f = Dim('f'); r.inputs('w', f)", DimensionError, ("the dims of w", "(d, e)", "got f")),
    ("foreign dim in eye", "x = r.let('x', eye(Dim('f')))", DimensionError, ("x uses eye(f)", "f is not a dim of bad (d, e)")),
    ("dims that weren't unpacked", "z = r.dims('m n'); r.inputs('w', z)", DimensionError,
     ("got (m, n)", "m, n were declared together")),
    ("inputs that weren't unpacked", "z = r.inputs('x y', d); r.update(S, z * v.T)", SpecError,
     ("x, y were declared together",)),
    ("dim as text", "r.inputs('w', 'd')", DimensionError, ("the dims of w", "'d'")),
    ("three dims", "r.inputs('w', d, d, e)", DimensionError, ("w has 3 dims", "at most 2")),
    ("apply to two shapes", "x = apply(lambda x, y: x * y, k, v)", DimensionError, ("one shape", "k, v")),
    # decays
    ("decay over two dims", "r.decay('a', d, e)", DimensionError, ("a has 2 dims", "`diag(a) * S.prev * diag(b)`")),
    ("decay over a vector", "r.decay('a', k)", DimensionError, ("the dims of a", "got k")),
    ("log of a decay as a name", "r.inputs('log_lam')", NameError_, ("'log_lam'", "the logarithm of lam")),
    # names
    ("unknown symbol", "r.update(S, sympy.Symbol('z') * S.prev)", NameError_,
     ("the update of S", "unknown symbol z", "r.inputs")),
    ("unknown symbol in apply", "x = r.let('x', apply(lambda a: a * sympy.Symbol('z'), k))", NameError_, ("unknown symbol z",)),
    ("undefined name", "r.update(S, z * S.prev)", LoadError, ("'z' is not defined", "r.inputs")),
    ("input of another recurrence", "z = Recurrence('p').inputs('z'); r.update(S, z * S.prev)", NameError_,
     ("uses z", "not declared in bad")),
    ("input of another recurrence that has the name", "p = Recurrence('p'); z = p.inputs('k', p.dims('d')); r.update(S, z * v.T)",
     NameError_, ("the k of another recurrence, p at bad.py", "declare one in bad")),
    ("decay of another that is an input here", "z = Recurrence('p').decay('beta'); r.update(S, exp(2 * z) * S.prev)", NameError_,
     ("the beta of another recurrence, a decay, a scalar, which is an input, a scalar in bad",)),
    ("scalar of another that is a vector here", "z = Recurrence('p').inputs('k'); r.update(S, exp(z) * S.prev)", NameError_,
     ("the k of another recurrence, an input, a scalar, which is an input over d in bad",)),
    ("state of another recurrence", "P = Recurrence('p').state('P'); r.update(S, P.prev * S.prev)", NameError_,
     ("reads P.prev", "not a state of bad")),
    ("name used twice", "r.inputs('q', d)", NameError_, ("'q' is used twice", "bad.py:5")),
    ("name used twice in one line", "r.inputs('x x', d)", NameError_, ("'x' is used twice",)),
    ("name of a dim", "r.inputs('d')", NameError_, ("'d' is used twice", "a dim of bad")),
    ("output with an input's name", "r.output('q', S.prev.T * q)", NameError_, ("'q' is used twice", "bad.py:5")),
    ("name of a gradient", "r.inputs('dq', d)", NameError_, ("'q' and 'dq'", "the gradient of q", "choose another")),
    ("reserved name", "r.inputs('backend')", NameError_, ("'backend' is reserved", "choose another")),
    ("name of an option", "r.inputs('precision')", NameError_, ("'precision' is reserved",)),
    ("name of an option of a step", "r.inputs('out')", NameError_, ("'out' is reserved",)),
    ("divided by a dim", "r.output('y', q / d)", DimensionError, ("the dim d is no number", "r.size(d)")),
    ("one over a dim", "r.output('y', 1 / d * q)", DimensionError, ("the dim d is no number", "r.size(d)")),
    ("function of a dim", "r.output('y', q / sqrt(d))", SpecError, ("got the dim d", "r.size(d)")),
    ("size of another's dim", "S.prev / r.size(Recurrence('other').dims('z'))", DimensionError, ("is not a dim of bad",)),
    ("name of a function", "r.inputs('exp')", NameError_, ("'exp' is reserved",)),
    ("Python keyword", "r.inputs('lambda')", NameError_, ("'lambda'", "identifier")),
    ("not an identifier", "r.inputs('2x')", NameError_, ("'2x'", "identifier")),
    ("list of names", "r.inputs(['x', 'y'])", NameError_, ("one string", "['x', 'y']")),
    ("term as a name", "r.output(k, k)", NameError_, ("a name must be a string", "k")),
    # causality and states
    ("update that reads itself", "r.update(S, lam * S.next)", CausalityError, ("the update of S reads S.next", "S.prev")),
    ("output before the update", "r.output('x', S.next.T * q)", CausalityError,
     ("the output x reads S.next", "S.prev", "update S first")),
    ("state without prev or next", "r.update(S, S * 2)", SpecError, ("S is a state", "S.prev or S.next")),
    ("scalar times a state", "r.update(S, beta * S)", SpecError, ("S is a state", "S.prev or S.next")),
    ("transpose of a state", "r.output('x', S.T * q)", SpecError, ("S is a state", "S.prev or S.next")),
    ("state alone", "r.update(S, S)", SpecError, ("got the state S", "S.prev or S.next")),
    ("function of a state", "x = exp(S)", SpecError, ("got the state S", "S.prev or S.next")),
    ("SymPy function of a state", "x = sympy.exp(S)", SpecError, ("S is a state", "S.prev or S.next")),
    ("dot with a state", "x = dot(S, q)", SpecError, ("got the state S", "S.prev or S.next")),
    ("misspelled prev", "r.update(S, S.previous)", SpecError, ("no 'previous'", "S.prev or S.next")),
    ("updated twice", "r.update(S, S.prev); r.update(S, S.prev)", NameError_, ("S is updated twice", "first at")),
    ("update of what isn't a state", "r.update(q, q)", SpecError, ("got q", "r.update(S, ...)")),
    ("update of a next state", "r.update(S.next, S.prev)", SpecError, ("got S.next", "r.update(S, ...)")),
    ("initial value that reads an input", "r.state('Z', d, initial=k)", CausalityError,
     ("the initial value of Z reads k", "constants and parameters")),
    ("initial value of another shape", "r.state('Z', d, e, initial=eye(d))", DimensionError,
     ("the initial value of Z", "eye(d) (d x d)", "d x e")),
    ("initial value that is a number", "r.state('Z', d, initial=-30)", DimensionError, ("write `-30 * ones(d)`",)),
    ("initial value that isn't finite", "r.state('Z', initial=-float('inf'))", SpecError, ("isn't finite", "-1e4")),
    ("initial vector that isn't finite", "r.state('Z', d, initial=-float('inf') * ones(d))", SpecError, ("isn't finite",)),
    ("initial value as text", "r.state('Z', d, initial='x')", SpecError, ("the initial value of Z", "'x'")),
    # functions and numbers
    ("function without a derivative", "x = r.let('x', sympy.gamma(beta)); r.output('y', x)", FunctionError,
     ("gamma(beta)", "no derivative", "sigmoid")),
    ("function of a vector without one", "r.output('y', apply(sympy.floor, k))", FunctionError, ("floor(k", "no derivative")),
    ("function of the user", "r.output('y', sympy.Function('f')(beta))", FunctionError, ("f(beta)", "no derivative")),
    ("sign", "r.output('y', sympy.sign(beta))", FunctionError, ("sign(beta)", "no derivative")),
    ("cases", "r.output('y', sympy.Piecewise((beta, beta > 0), (0, True)))", SpecError, ("beta is compared", "Max, Min")),
    ("SymPy function of a vector", "x = sympy.exp(k)", DimensionError, ("k (d x 1)", "chunkform.spec.language")),
    ("function of math", "import math; x = math.exp(k)", SpecError, ("k has no value", "chunkform.spec.language")),
    ("function of math of a scalar", "import math; x = math.exp(beta)", SpecError,
     ("beta has no value", "chunkform.spec.language")),
    ("function of numpy", "import numpy as np; x = np.exp(k)", SpecError, ("numpy's exp", "use exp of chunkform.spec.language")),
    ("function of numpy of a scalar", "import numpy as np; x = np.tanh(beta)", SpecError, ("use tanh of chunkform",)),
    ("function of torch", "import torch; x = torch.sigmoid(k)", SpecError, ("torch's sigmoid", "use sigmoid of chunkform")),
    ("function of torch of a scalar", "import torch; x = torch.exp(lam)", SpecError, ("use exp of chunkform",)),
    ("torch's maximum", "import torch; x = torch.maximum(q, k)", SpecError, ("use Max of chunkform",)),
    ("Python's max of a scalar", "r.update(S, max(lam, 0.5) * S.prev)", SpecError, ("lam is compared with 0.5", "Max, Min")),
    ("branch on a product", "x = q if dot(q, k) > 0 else k", SpecError, ("is compared with 0", "no branches")),
    ("two terms for a function of one", "x = relu(k, 0)", SpecError, ("relu takes one term, got 2: k, 0", "Max")),
    ("maximum of two dims", "x = Max(k, v)", DimensionError, ("Max of k (d x 1) and v (e x 1)",)),
    ("maximum of one", "x = Max(k)", SpecError, ("Max takes two terms",)),
    ("SymPy's maximum of vectors", "x = sympy.Max(q, k)", DimensionError, ("isn't a scalar", "Max and Min among them")),
    ("array", "import numpy as np; x = np.eye(3) * S.prev", SpecError, ("S.prev", "ndarray", "symbols, numbers")),
    ("comparison", "x = (beta > 0) * S.prev", SpecError, ("beta is compared with 0", "no branches")),
    ("branch", "x = q if beta > 0 else k", SpecError, ("beta is compared", "Max, Min, relu")),
    ("branch on a term", "x = q if 2 * beta > 0 else k", SpecError, ("2*beta > 0", "Max, Min, relu")),
    ("branch on a vector", "x = q if k else q", SpecError, ("k has no truth value",)),
    ("method of tensors", "x = k.sum()", SpecError, ("k is a term of a spec", "'sum'", "write total(..)")),
    ("transposed as a tensor", "x = S.prev.t()", SpecError, ("write .T",)),
    ("function as a method", "x = (S.prev.T * k).sigmoid()", SpecError, ("write sigmoid(..)",)),
    ("state of a state", "x = S.prev.prev", SpecError, ("a state has it, and this is a term",)),
    ("channels of the other dim", "x = r.decay('a2', e) * S.prev", DimensionError, ("write `S.prev * diag(a2)`",)),
    ("entry of a vector", "x = k[0]", SpecError, ("k has no entries", "dot")),
    ("entry of a scalar", "x = beta[0]", SpecError, ("beta is a scalar", "no entries")),
    ("entry of a product", "x = dot(q, k)[0]", SpecError, ("is a scalar", "no entries")),
    ("entry of a dim", "x = d[0]", DimensionError, ("the dim d is no number",)),
    ("length of a vector", "x = len(k)", SpecError, ("k is one term over d", "r.size(d)")),
    ("length of a scalar", "x = len(beta)", LoadError, ("no length", "r.size(d)")),
    ("range of a dim", "x = range(d)", DimensionError, ("the dim d is no number", "r.size(d)")),
    ("dims in order", "x = d < e", DimensionError, ("the dim d is no number",)),
    ("vectors in order", "x = k >= q", SpecError, ("k is compared", "Max(a, b)")),
    ("state in order", "x = S > 0", SpecError, ("S is a state", "S.prev or S.next")),
    ("magnitude of a state", "x = abs(S)", SpecError, ("S is a state", "S.prev or S.next")),
    ("remainder of a vector", "x = k % 2", SpecError, ("k is a term of real numbers", "+ - * /")),
    ("remainder of a state", "x = S % 2", SpecError, ("S is a state", "S.prev or S.next")),
    ("vector as an integer", "x = int(k)", SpecError, ("k has no value", "chunkform.spec.language")),
    ("scalar as an integer", "x = int(beta)", LoadError, ("has no value in a spec", "chunkform.spec.language")),
    ("unpacked vector", "x, y = k", SpecError, ("k is one term", "d x 1")),
    ("power of a matrix", "x = S.prev ** 2", SpecError, ("S.prev (d x e)", "hadamard")),
    ("exponent that is a matrix", "x = S.prev ** S.prev", SpecError, ("the exponent of S.prev must be a number",)),
    ("exponent that is a vector", "x = k ** q", SpecError, ("the exponent of k", "`exp(hadamard(q, log(k)))`")),
    ("exponent that is a scalar", "x = k ** beta", SpecError, ("the exponent of k", "`exp(beta * log(k))`")),
    ("power with a vector on top", "x = beta ** k", SpecError, ("k (d x 1)", "`exp(k * log(beta))`")),
    ("infinite constant", "r.output('y', sympy.oo * k)", FunctionError, ("oo is not a finite real number",)),
    ("infinite float", "r.output('y', float('inf') * k)", FunctionError, ("oo is not a finite real number",)),
    ("nan", "r.output('y', float('nan') * k)", FunctionError, ("nan is not a finite real number",)),
    ("division by zero", "r.output('y', k / 0)", FunctionError, ("not a finite real number",)),
    ("imaginary constant", "r.output('y', sympy.sqrt(-1) * beta * k)", SpecError, ("the output y must be real",)),
    ("default that is no number", "r.constant('c', 'x')", SpecError, ("the default of constant c", "'x'")),
    ("infinite default", "r.constant('c', float('inf'))", SpecError, ("the default of constant c", "inf")),
    ("function that returns nothing", "x = apply(lambda x: None, k)", SpecError, ("must return a SymPy expression",)),
    ("let that is text", "r.let('x', 'S.prev')", SpecError, ("x must be a term", "'S.prev'")),
    ("output that is nothing", "r.output('x', None)", SpecError, ("the output x must be a term", "None")),
    ("output that reads nothing", "r.output('x', 1)", SpecError, ("the output x is 1", "no input and no state")),
    # calls, and names of other libraries
    ("misspelt method", "z = r.input('z', d)", SpecError, ("a recurrence has no 'input'", "did you mean inputs?")),
    ("shortened method", "z = r.param('z')", SpecError, ("no 'param'", "did you mean parameter or parameters?")),
    ("quantity as an attribute", "x = r.q", SpecError, ("no 'q'", "`q = r.inputs('q')`")),
    ("product of one", "x = hadamard(k)", LoadError, ("hadamard()", "write hadamard(a, b, *more)")),
    ("softmax along an axis", "x = softmax(k, 0)", LoadError, ("softmax()", "write softmax(a)")),
    ("update without a value", "r.update(S)", LoadError, ("'term'", "write r.update(state, term)")),
    ("output without a name", "r.output(S.prev.T * q)", LoadError, ("write r.output(name, term)",)),
    ("domain of a decay", "r.decay('a', d, domain=(0, 1))", LoadError, ("'domain'", "write r.decay(names, *dim)")),
    ("first state by another word", "r.state('Z', d, init=0)", LoadError, ("initial? write r.state(name, *dims, initial=",)),
    ("recurrence without a name", "Recurrence()", LoadError, ("write Recurrence(name, doc='', source='')",)),
    ("function that isn't called", "r.output('y', relu)", SpecError, ("got the function relu: write relu(..)",)),
    ("apply the other way round", "x = apply(k, lambda x: x)", DimensionError, ("a function and one or more vectors",)),
    ("apply of one to two", "x = apply(lambda x, y: x, k)", DimensionError, ("takes (x, y), got 1 vector",)),
    ("branch on a scalar", "x = q if beta else k", SpecError, ("beta has no truth value", "Max, Min, relu")),
    ("not of a scalar", "x = not beta", SpecError, ("beta has no truth value",)),
    ("vector of another step", "x = k(0)", SpecError, ("k is a term of the step at hand", "is a state")),
    ("state of another step", "x = S(0)", SpecError, ("S is a state", "S.prev or S.next")),
    ("outer by name", "r.update(S, S.prev + outer(k, v))", LoadError, ("'outer' is not defined", "write a * b.T")),
    ("sum over steps by name", "x = cumsum(k)", LoadError, ("'cumsum' is not defined", "what runs over steps is a state")),
    ("cases by name", "x = where(beta, q, k)", LoadError, ("'where' is not defined", "no branches")),
    ("parts of a vector", "x = concat(k, q)", LoadError, ("'concat' is not defined", "a quantity of its own")),
    ("function that SymPy lacks", "x = sympy.sigmoid(beta)", LoadError, ("sigmoid is of chunkform.spec.language",)),
    ("dtype of a term", "x = k.float()", SpecError, ("no 'float'", "what its op is called with")),
    ("rounded scalar", "x = round(beta)", LoadError, ("a term has no value in a spec",)),
    ("norm with text", "x = normalize(k, eps='a')", SpecError, ("the eps of normalize must be a number", "'a'")),
    # what Python, numpy, torch and SymPy say otherwise
    ("rounded product", "x = round(2 * beta)", LoadError, ("a term has no value in a spec", "none of which rounds")),
    ("rounded vector", "x = round(k)", SpecError, ("k is a term of real numbers",)),
    ("rounded state", "x = round(S)", LoadError, ("rounding takes a number, got a state",)),
    ("keyword that there isn't", "Z = r.state('Z', d, shape=3)", LoadError,
     ("r.state() takes no 'shape': write r.state(name, *dims,",)),
    ("keyword spelt otherwise", "Z = r.state('Z', d, initail=0)", LoadError,
     ("r.state() takes no 'initail': did you mean initial? write",)),
    ("dims as a keyword", "z = r.inputs('z', dims=d)", LoadError, ("r.inputs() takes no 'dims': write r.inputs(names, *dims,",)),
    ("too many arguments", "r.update(S, S.prev, k)", LoadError, ("r.update() takes at most 2 arguments, got 3",)),
    ("too many for a size", "x = r.size(d, e)", LoadError, ("r.size() takes at most 1 argument, got 2: write r.size(dim)",)),
    ("quotient and remainder", "x = divmod(k, 2)", SpecError, ("k is a term of real numbers",)),
    ("remainder", "r.output('y', (beta % 2) * q)", FunctionError,
     ("the function Mod in the term Mod(beta, 2) has no derivative",)),
    (
        "whole part", "r.output('y', (beta // 2) * q)", FunctionError,
        ("the function floor", "abs, asinh, cos, erf, exp, log, relu, sigmoid, sin, softplus, tanh"),
    ),
    ("power by a modulus", "x = pow(k, 2, 3)", SpecError, ("the exponent of k must be a number",)),
    ("shifted scalar", "x = beta << 1", LoadError, ("Python's operators", "got << of a scalar and a number")),
    ("shifted vector", "x = k << 1", SpecError, ("k is a term of real numbers",)),
    ("power of a number as others write it", "x = 2 ^ beta", LoadError, ("got ^ of a number and a scalar, and ** is a power",)),
    ("matrix product of scalars", "x = beta @ lam", LoadError, ("@ multiplies vectors and matrices", "a scalar and a scalar")),
    ("matrix product with a scalar", "x = k @ beta", DimensionError,
     ("@ multiplies vectors and matrices", "the scalar beta: write *")),
    ("matrix product with a number", "x = 2 @ k", DimensionError, ("the scalar 2: write *",)),
    ("sum with None", "x = beta + None", LoadError, ("got a scalar and None", "r.output give nothing back")),
    ("difference with None", "x = k - None", SpecError, ("can't combine k with None", "r.update and r.output give back")),
    ("output as a quantity", "z = r.output('y', q); x = 2 * z", LoadError, ("got a number and None", "give nothing back")),
    ("attribute of an output", "z = r.output('y', q); z.T", LoadError,
     ("None, which is what r.update and r.output give back, has no 'T'",)),
    ("text", "x = beta + 'q'", LoadError, ("+ takes terms of the spec and numbers, got a scalar and text",)),
    ("text first", "x = 'q' + beta", LoadError, ("got text and a scalar",)),
    ("text times", "x = 'q' * beta", LoadError, ("* takes terms of the spec and numbers",)),
    ("list times", "x = [1, 2] * k", SpecError, ("can't combine k with [1, 2], a list",)),
    ("function times", "x = beta * exp", LoadError, ("a function that isn't called: call it, as in exp(x)",)),
    ("function times a vector", "x = k * exp", SpecError, ("can't combine k with the function exp: write exp(..)",)),
    ("function of a function", "x = exp(exp)", SpecError, ("exp takes a term of the spec, got the function exp",)),
    ("truth value times a vector", "x = True * k", SpecError, ("can't combine k with True, a bool",)),
    ("SymPy's truth value", "x = sympy.true * q", LoadError, ("got a truth value",)),
    ("matrix of SymPy", "x = sympy.MatrixSymbol('A', 3, 3) * k", SpecError, ("can't combine k with A",)),
    ("matrix of SymPy's numbers", "r.update(S, sympy.eye(3))", SpecError,
     ("the update of S must be a term of the spec, got Matrix([ [1, 0, 0],",)),
    ("array of many lines", "import numpy as np; x = np.zeros((3, 4)) + S.prev", SpecError,
     ("can't combine S.prev with array(",)),
    ("product of SymPy through numpy", "import numpy as np; x = np.exp(2 * beta)", LoadError,
     ("numpy's exp takes numbers", "use exp of")),
    ("product of SymPy through torch", "import torch; x = torch.sigmoid(2 * beta)", LoadError,
     ("torch's sigmoid takes tensors", "use sigmoid of")),
    ("clipped by numpy", "import numpy as np; x = np.clip(k, 0, 1)", SpecError, ("k is compared", "Max(a, b), Min")),
    ("math of a product", "import math; x = math.exp(2 * beta)", LoadError, ("a term has no value in a spec",)),
    ("function of torch inside apply", "import torch; x = apply(torch.exp, q)", LoadError, ("torch's exp takes tensors",)),
    ("sum of Python inside apply", "x = apply(sum, q)", LoadError, ("a scalar has no entries to loop over",)),
    ("branch inside apply", "x = apply(lambda x: 1 if x > 0 else 0, k)", SpecError,
     ("x0_ > 0 has no truth value", "no branches")),
    ("vector inside apply", "x = apply(lambda x: x * k, k)", SpecError, ("must return a SymPy expression, got", "x0_")),
    ("branch on a product of scalars", "x = q if 2 * beta else k", SpecError, ("2*beta has no truth value", "no branches")),
    ("branch on equality", "x = q if beta == 0 else k", SpecError, ("beta is compared", "no branches", "`is`")),
    ("branch on equal vectors", "x = q if q == k else k", SpecError, ("q is compared", "no branches")),
    ("term in a list", "x = 2 * beta in [1, 2]", SpecError, ("2*beta is compared",)),
    ("and of a product", "x = (2 * beta) and lam", SpecError, ("2*beta has no truth value",)),
    ("not of a product", "x = not (2 * beta)", SpecError, ("2*beta has no truth value",)),
    ("branch in a comprehension", "x = [a for a in (q, k) if a == q]", SpecError, ("q is compared",)),
    ("product of SymPy, unpacked", "x, y = 2 * beta", LoadError, ("a scalar can't be unpacked",)),
    ("more names than quantities", "x, y, z = r.inputs('x y', d)", LoadError, ("3 names are given to 2 quantities",)),
    ("fewer names than quantities", "x, y = r.inputs('x y z', d)", LoadError, ("2 names are given to",)),
    ("attribute of quantities together", "z = r.inputs('z w', d); z.T", LoadError, ("a tuple has no 'T'", "declared together")),
    ("function of quantities together", "z = r.inputs('z w', d); x = exp(z)", SpecError,
     ("exp takes a term", "z, w were declared together")),
    ("list read at a scalar", "x = [1, 2][beta]", LoadError, ("a list is read at a whole number, got a scalar",)),
    ("range of a scalar", "x = range(beta)", LoadError, ("expected a whole number, got a scalar",)),
    ("formatted scalar", "x = f'{beta:.2f}'", LoadError, ("only numbers are formatted by digits, got a scalar",)),
    ("entry that is set", "k[0] = 1", LoadError, ("a vector or matrix of a spec can't be set or deleted",)),
    ("entry of a state that is set", "S[0] = 1", LoadError, ("a state is set as a whole, by r.update(S, ..)",)),
    ("transpose that is set", "k.T = q", LoadError, ("can't be set or deleted",)),
    ("context", "with k: pass", LoadError, ("a vector or matrix is no context",)),
    ("dim with a value", "d.size = 64", LoadError, ("a dim of a spec can't be set",)),
    ("dim as a function", "x = d()", LoadError, ("a dim isn't called like a function", "r.size(d)")),
    ("magnitude of a dim", "x = abs(d)", LoadError, ("a dim is no number", "r.size(d)")),
    ("size of a vector", "x = k.size", SpecError, ("no 'size'", "its dims say its shape")),
    ("step before of a scalar", "x = beta.prev", LoadError, ("a scalar has no 'prev'", "a state has it")),
    ("recurrence as a function", "x = r(q)", LoadError, ("a recurrence isn't called like a function", "op = r.compile()")),
    ("list of outputs", "x = r.outputs.o", LoadError, ("the list of what is declared has no 'o'",)),
    ("output that is a dim", "r.output('y', d)", SpecError, ("got the dim d", "r.size(d)")),
    ("product of entries with None", "x = hadamard(None, q)", DimensionError,
     ("hadamard takes two vectors or matrices, got None",)),
    ("maximum of a state", "x = Max(S, 0)", SpecError, ("got the state S: write S.prev or S.next, 0",)),
    ("maximum of nothing", "x = Max()", SpecError, ("got nothing",)),
    ("update by a list", "r.update(S, [S.prev])", SpecError, ("must be a term of the spec, got [S.prev], a list",)),
    # Python
    ("missing module", "import nowhere_to_be_found", LoadError, ("nowhere_to_be_found",)),
    ("syntax", "r.update(S, S.prev +", LoadError, ("never closed",)),
]  # fmt: skip


def refused(tmp_path: Path, text: str) -> ChunkformError:
    file = tmp_path / "bad.py"
    file.write_text(text)
    with breaking_nothing(), pytest.raises(ChunkformError) as error:
        for r in load(file):
            compile_spec(r)
    return error.value


@pytest.mark.parametrize("line, error, says", [pytest.param(*x[1:], id=x[0].replace(" ", "-")) for x in MISTAKES])
def test_one_clear_error(tmp_path: Path, line: str, error: type[ChunkformError], says: tuple[str, ...]) -> None:
    refusal = refused(tmp_path, HEAD + line + TAIL)
    assert isinstance(refusal, error)
    message = str(refusal)
    assert f'bad.py:{HEAD_LINES + 1} "{line}"' in message
    assert [x for x in says if x not in message] == []
    assert "\n" not in message and "Source(" not in message and "Dim(name" not in message


@pytest.mark.parametrize(
    "text, line, says",
    [
        (
            'from chunkform.spec.language import *\nr = Recurrence("bad")\nd, e = r.dims("d e")\nk = r.inputs("k", d)\n'
            'S = r.state("S", d, e)\nr.update(S, S.prev)\nr.output("o", S.next.T * k)\n',
            5,
            ("no input or parameter has the dim e", "declare one", 'r.parameter("w", e)'),
        ),
        (HEAD + 'r.output("o", S.prev.T * q)\n', 9, ("the state S is never updated", "r.update(S, ...)")),
        (HEAD + "r.update(S, S.prev + k * v.T)\n", 3, ("bad has no output", "r.output")),
        ('from chunkform.spec.language import *\nr = Recurrence("bad")\n', 2, ("bad has no state", "r.state")),
        ('from chunkform.spec.language import *\nr = Recurrence("my spec")\n', 2, ("Python identifier", "'my spec'")),
    ],
    ids=["dim without a size", "state never updated", "no output", "no state", "name of the recurrence"],
)
def test_what_only_the_whole_spec_shows(tmp_path: Path, text: str, line: int, says: tuple[str, ...]) -> None:
    message = str(refused(tmp_path, text))
    assert f'bad.py:{line} "{text.splitlines()[line - 1]}"' in message
    assert [x for x in says if x not in message] == []


def test_a_file_may_branch_on_what_is_no_term(tmp_path: Path) -> None:
    text = HEAD + (
        "width = 2\nkind = 'gated' if width == 2 and not width != 2 else 'plain'\nassert kind in ('gated', 'plain')\n"
        "first = [x for x in (q, k) if x is q and d != e]\nif len(first) == 1 or width:\n    k = +first[0]\n"
        f"x = {' + '.join(['1'] * 2000)}\n"
    )
    file = tmp_path / "bad.py"
    file.write_text(text + TAIL)
    (r,) = load(file)
    assert "q" in str(r.updates[0].term) and "k" not in str(r.updates[0].term)


def test_a_file_without_a_recurrence(tmp_path: Path) -> None:
    assert "holds no Recurrence" in str(refused(tmp_path, "x = 1\n"))


def test_two_recurrences_of_one_name(tmp_path: Path) -> None:
    one = HEAD + TAIL
    assert "two recurrences named 'bad'" in str(refused(tmp_path, one + "first = r\n" + one))


def test_a_line_is_named_wherever_the_file_is_loaded_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "bad.py").write_text(HEAD + "r.output('o', q.unknown)\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LoadError, match=f"bad.py:{len(HEAD.splitlines()) + 1}"):
        load(Path("inner/bad.py"))


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="there is no spec file"):
        load(tmp_path / "nothing.py")


def test_the_first_mistake_wins(tmp_path: Path) -> None:
    message = str(refused(tmp_path, HEAD + "r.update(S, S.prev + k)\nr.update(S, S.prev + 1)\n"))
    assert f"bad.py:{HEAD_LINES + 1}" in message and "scalar" not in message


@pytest.mark.parametrize("name", ["torch", "OP", "range", "torch_forward"])
def test_an_op_does_not_take_the_place_of_what_its_file_calls(name: str) -> None:
    with pytest.raises(NameError_, match=rf"test_mistakes.py:\d+.*the name {name!r} is reserved"):
        Recurrence(name)


def test_the_description_of_a_recurrence_may_be_set_and_that_of_a_kind_of_ones_own(tmp_path: Path) -> None:
    class Mine(Recurrence):
        def __init__(self, name: str) -> None:
            super().__init__(name)
            self.mine = 3

    r = Mine("mine")
    r.doc, r.source = "a sum", "a book"
    assert (r.doc, r.source, r.mine) == ("a sum", "a book", 3)

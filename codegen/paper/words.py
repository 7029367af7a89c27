"""The words of this field's mathematics: fonts, accents, functions, relations, and what brackets close."""

from __future__ import annotations

FONTS = {
    **dict.fromkeys("mathbf bm boldsymbol pmb textbf bold bf mathbfit symbf".split(), "bold"),
    **dict.fromkeys(
        "mathrm mathit mathsf mathtt rm sf tt it textit textrm textsf mathnormal vec symup operatorname text".split(),
        "",
    ),
    **dict.fromkeys("mathcal mathscr cal".split(), "cal"),
    **dict.fromkeys("mathbb Bbb".split(), "bb"),
    **dict.fromkeys("mathfrak frak".split(), "frak"),
}
SWITCHES = {"rm", "bf", "sf", "tt", "it", "cal", "frak"}  # fonts that hold up to the end of their group, as in {\bf x}
NAMING = {
    "operatorname",
    "mathrm",
    "text",
    "mathsf",
    "mathtt",
    "textrm",
    "textsf",
    "mbox",
    "rm",
    "sf",
    "mathit",
    "textit",
}
ACCENTS = dict(
    x.split(":")
    for x in "bar:bar overline:bar tilde:tilde widetilde:tilde hat:hat widehat:hat dot:dot ddot:ddot check:check breve:breve "
    "underline:under acute:acute grave:grave mathring:ring overrightarrow:right overleftarrow:left overleftrightarrow:both "
    "overparen:paren wideparen:paren".split()
)
# What says that a product goes on to the left, A_t .. A_1, and to the right.
LEFTWARDS = set(
    "overleftarrow curvearrowleft leftarrow longleftarrow circlearrowleft xleftarrow gets Leftarrow".split()
)
RIGHTWARDS = set(
    "overrightarrow curvearrowright rightarrow longrightarrow circlearrowright xrightarrow to Rightarrow".split()
)
BIG = {"sum": "sum", "prod": "product over", "bigodot": "hadamard over", "bigcirc": "hadamard over"}
GREEK = set(
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi pi varpi rho varrho sigma "
    "varsigma tau upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega ell Alpha Beta "
    "Epsilon Zeta Eta Iota Kappa Mu Nu Rho Tau Chi hbar imath jmath aleph".split()
)
# Names as Python and the claims write them.
SPELLED = dict(
    x.split(":")
    for x in "lambda:lam varepsilon:epsilon vartheta:theta varphi:phi varrho:rho varsigma:sigma varpi:pi".split()
)
# Functions by the names that authors give them: the name of the function here.
FUNCTIONS = {
    **{
        x: x
        for x in "exp log sqrt sin cos tanh sigmoid softplus relu silu erf sign abs softmax diag tril triu stril".split()
    },
    **{
        x: x
        for x in "revcumsum cumsum rowsum colsum rows columns inner trace max min argmax argmin rowmax det kernel".split()
    },
    **{x: x for x in "logsumexp rank mask unit".split()},
    **dict(
        x.split(":")
        for x in "ln:log ReLU:relu SiLU:silu swish:silu sgn:sign Diag:diag diagonal:diag Tril:tril StrictTril:stril "
        "strictlower:stril strictLower:stril StrictLower:stril strictTril:stril StrictlyLower:stril strictlyLower:stril "
        "LowerTriangular:tril lowerTriangular:tril RowSum:rowsum rowSum:rowsum ColSum:colsum colSum:colsum CumSum:cumsum "
        "cumSum:cumsum SoftMax:softmax softMax:softmax Trace:trace "
        "lower:tril LowerTri:tril tr:trace Tr:trace ker:kernel Softmax:softmax".split()
    ),
}
RELATIONS = {
    **dict.fromkeys("= equiv".split(), "="),
    **dict.fromkeys("triangleq coloneqq doteq coloneq leftarrow gets".split(), ":="),
    **dict.fromkeys("approx simeq cong".split(), "~"),
    **dict.fromkeys("le leq leqslant".split(), "<="),
    **dict.fromkeys("ge geq geqslant".split(), ">="),
    **dict.fromkeys("< lt ll".split(), "<"),
    **dict.fromkeys("> gt gg".split(), ">"),
    **dict.fromkeys("ne neq".split(), "!="),
    **dict.fromkeys("in subset subseteq".split(), "in"),
    **dict.fromkeys("to rightarrow mapsto longrightarrow".split(), "->"),
    **dict.fromkeys("Rightarrow implies".split(), "=>"),
    **dict.fromkeys("iff Leftrightarrow".split(), "<=>"),
    "propto": "propto",
    "perp": "perp",
    "sim": "sampled",
}
OPENING = dict(
    x.split()
    for x in ("( )", "[ ]", "{ }", "lbrace rbrace", "langle rangle", "lfloor rfloor", "lceil rceil", "lbrack rbrack")
)
CLOSING = {b: a for a, b in OPENING.items()}
# Environments whose rows are rows of the display, and those that hold a matrix.
ROWS = set(
    "equation align aligned alignat alignedat gather gathered multline multlined eqnarray split flalign displaymath math dmath "
    "dgroup subequations IEEEeqnarray empheq".split()
)
WITH_COLUMNS = ("alignat", "alignedat", "IEEEeqnarray", "empheq")  # those that say their columns in braces
MATRICES = {"matrix", "pmatrix", "bmatrix", "Bmatrix", "vmatrix", "Vmatrix", "smallmatrix", "array"}
CASES = {"cases", "dcases", "rcases", "numcases"}
TRANSPOSES = {"top", "intercal", "T-sup", "mathsf-T"}
WORDS = set("if for where otherwise else and is with or s.t. when all as then let".split())
LOSSES = {"l", "L", "Lcal", "ell", "J", "loss", "E_loss"}
INDICES = frozenset("ijklmprstuv")  # what stands alone below a symbol counts them, and isn't a name

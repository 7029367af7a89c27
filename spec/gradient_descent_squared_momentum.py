"""A linear layer trained by gradient descent on |W x - y|^2 / 2, with momentum and weight decay; minibatches too.

Several points of one minibatch are steps with eta = 0 but at the last, and mu = 1 but at the first: runtime/nn/dual_form.py.
"""

from .language import Recurrence

r = Recurrence("gradient_descent_squared_momentum", source="arXiv 2202.05798")
n, m = r.dims("n m")
x, z = r.inputs("x z", n)
y = r.inputs("y", m)
eta = r.inputs("eta")
mu, keep = r.decay("mu keep")
V = r.state("V", m, n)
W = r.state("W", m, n)
error = r.let("error", W.prev * x - y)
r.update(V, mu * V.prev + error * x.T)
r.update(W, keep * W.prev - eta * V.next)
r.output("o", W.next * z)

"""A linear layer trained by gradient descent on |W x - y|^2 / 2, with weight decay: each step keeps a part of W."""

from .language import Recurrence

r = Recurrence("gradient_descent_squared_weight_decay", source="arXiv 2202.05798")
n, m = r.dims("n m")
x, z = r.inputs("x z", n)
y = r.inputs("y", m)
eta = r.inputs("eta")
keep = r.decay("keep")
W = r.state("W", m, n)
error = r.let("error", W.prev * x - y)
r.update(W, keep * W.prev - eta * error * x.T)
r.output("o", W.next * z)

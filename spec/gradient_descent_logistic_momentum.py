"""A linear layer trained by gradient descent on the logistic loss, with momentum and weight decay; minibatches too."""

from .language import Recurrence, sigmoid

r = Recurrence("gradient_descent_logistic_momentum", source="arXiv 2202.05798")
n, m = r.dims("n m")
x, z = r.inputs("x z", n)
y = r.inputs("y", m)
eta = r.inputs("eta")
mu, keep = r.decay("mu keep")
V = r.state("V", m, n)
W = r.state("W", m, n)
error = r.let("error", sigmoid(W.prev * x) - y)
r.update(V, mu * V.prev + error * x.T)
r.update(W, keep * W.prev - eta * V.next)
r.output("o", W.next * z)

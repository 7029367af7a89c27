"""A linear layer trained by gradient descent on the logistic loss: the update isn't affine in W."""

from .language import Recurrence, sigmoid

r = Recurrence("gradient_descent_logistic", source="arXiv 2202.05798")
n, m = r.dims("n m")
x, z = r.inputs("x z", n)
y = r.inputs("y", m)
eta = r.inputs("eta")
W = r.state("W", m, n)
error = r.let("error", sigmoid(W.prev * x) - y)
r.update(W, W.prev - eta * error * x.T)
r.output("o", W.next * z)

"""An op as users call it: its signature, the checks of its arguments, its passes, autograd, torch's library, decoding."""

"""Lives of a small real lake: what is done to it, what it must then hold, and in what it does not.

model.py     what a life has done to the lake, and what the lake must hold by the oracles
compare.py   in what the real lake differs from that, in words
"""

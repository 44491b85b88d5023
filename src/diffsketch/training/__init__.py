"""Learning: what is trained, on which data, and the rounds that train it.

Here live the data sets, and beside them the tasks, the models, distributed SGD and FedAvg as rounds
over a method. May import `sketch`, `privacy` and `methods`, and nothing else of ours but `errors`;
engines, experiments and the command line import it.
"""

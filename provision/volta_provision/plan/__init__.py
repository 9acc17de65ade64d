"""`volta-stack plan`: whether a model runs on given hosts, with what, how, and how fast.

hosts.py says what there is to run on, model.py what is to be run; choose.py holds every engine and
number of GPUs against both, and report.py has the outcome as JSON, table.py as one screen, write.py
as a stack.yaml.
"""

"""Facts: what was seen on a host, section by section, and nothing concluded from it.

A section of a snapshot is the module or package of its name; what only it needs lies in its
package, what several share beside them. model.py says how to add one, gather.py runs them.
"""

"""How a shell starts vLLM: the script read for certain, and its speculative flags changed in place. Pure; used by command.py.

text.py knows where each character of a text stands, words.py what the words of a command come to, script.py which command is the
engine's, and edit.py how it gets another setting.
"""

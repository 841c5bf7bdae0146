"""Right chains, written down before any was recorded: reads .chains files (the language is described in
tests/programs/common.chains) and matches a trace against them.

A chain is a regular expression over frames. It is matched from the leaf: an incomplete trace knows its leaf end only.
"""

import re
from dataclasses import dataclass

TOKEN = re.compile(r"\s*(?:(\$\w+)|(~[\w-]*|[A-Za-z_.][\w.:~]*)|(\{\d+(?:,\d+)?\}|[()|?*+]))")


@dataclass(frozen=True)
class Frame:
    """One frame as the truth sees it. `own`: the function of ours, by address; None where the file is not ours.
    `module`: the base name of the file. `stub`: a PLT stub of ours."""

    own: str | None
    module: str = ""
    stub: bool = False

    def matches(self, token):
        if not token.startswith("~"):
            return self.own == token
        if self.own is not None:
            return False
        if token == "~":
            return True
        if token == "~plt":
            return self.stub
        # In a static program, libc is in the program's own file.
        return self.module.lstrip("[").startswith(token[1:]) or (token == "~libc" and self.module == "static")

    def __str__(self):
        return self.own or ("~plt" if self.stub else "~" + self.module)


class Chains:
    """The right chains of a program as one automaton, leaf first."""

    def __init__(self):
        self._edges = []  # state -> [(token or None, state)]
        self.names = set()  # every function of ours that a chain names
        self._lets = {}
        self._accept = self._state()
        self._starts = []

    def add_text(self, text, where="chains"):
        for number, line in enumerate(text.splitlines(), 1):
            line = line.split("#")[0].strip()
            if not line:
                continue
            try:
                if line.startswith("let "):
                    name, tokens = line[4:].split("=", 1)
                    self._lets["$" + name.strip()] = self._parse(tokens)
                else:
                    self._starts.append(self._build(self._parse(line), self._accept))
            except (ValueError, KeyError, IndexError) as error:
                raise ValueError(f"{where}:{number}: {error!r} in: {line}") from None
        return self

    def add_file(self, path):
        with open(path) as file:
            return self.add_text(file.read(), path)

    # Parsing: a tree of ("seq", [...]), ("alt", [...]), ("repeat", node, least, most or None), ("token", text).
    def _parse(self, text):
        text = text.strip()
        tokens, at = [], 0
        while at < len(text):
            match = TOKEN.match(text, at)
            if not match:
                raise ValueError(f"cannot read {text[at:]!r}")
            tokens.append(match.group().strip())
            at = match.end()
        tree, rest = self._alternatives(tokens)
        if rest:
            raise ValueError(f"unexpected {rest[0]!r}")
        return tree

    def _alternatives(self, tokens):
        choices = []
        while True:
            sequence = []
            while tokens and tokens[0] not in ("|", ")"):
                item, tokens = self._item(tokens)
                sequence.append(item)
            choices.append(("seq", sequence))
            if not tokens or tokens[0] == ")":
                return (choices[0] if len(choices) == 1 else ("alt", choices)), tokens
            tokens = tokens[1:]

    def _item(self, tokens):
        head, tokens = tokens[0], tokens[1:]
        if head == "(":
            item, tokens = self._alternatives(tokens)
            if tokens[0] != ")":
                raise ValueError("missing )")
            tokens = tokens[1:]
        elif head.startswith("$"):
            item = self._lets[head]
        elif head[0] in "?*+{|":
            raise ValueError(f"nothing to repeat before {head}")
        else:
            item = ("token", head)
            if not head.startswith("~"):
                self.names.add(head)
        while tokens and tokens[0][0] in "?*+{":
            least, most = {"?": (0, 1), "*": (0, None), "+": (1, None)}.get(tokens[0], (None, None))
            if least is None:
                bounds = [int(n) for n in tokens[0][1:-1].split(",")]
                least, most = bounds[0], bounds[-1]
            item = ("repeat", item, least, most)
            tokens = tokens[1:]
        return item, tokens

    # Thompson's construction, backwards: _build(tree, to) gives the state that reads `tree` leaf first, then is at `to`.
    def _state(self):
        self._edges.append([])
        return len(self._edges) - 1

    def _build(self, tree, to):
        kind = tree[0]
        if kind == "token":
            state = self._state()
            self._edges[state].append((tree[1], to))
            return state
        if kind == "seq":
            for item in tree[1]:  # the root end is read last
                to = self._build(item, to)
            return to
        if kind == "alt":
            state = self._state()
            for choice in tree[1]:
                self._edges[state].append((None, self._build(choice, to)))
            return state
        _, item, least, most = tree
        if most is None:
            loop = self._state()
            self._edges[loop].append((None, to))
            self._edges[loop].append((None, self._build(item, loop)))
            to = loop
        else:
            for _ in range(most - least):
                skip = self._state()
                self._edges[skip] += [(None, to), (None, self._build(item, to))]
                to = skip
        for _ in range(least):
            to = self._build(item, to)
        return to

    def _closure(self, states):
        seen = set(states)
        todo = list(seen)
        while todo:
            for token, to in self._edges[todo.pop()]:
                if token is None and to not in seen:
                    seen.add(to)
                    todo.append(to)
        return seen

    def right(self, leaf_first, complete):
        """Is the trace a right chain (or, incomplete, the leaf end of one)?"""
        states = self._closure(self._starts)
        for frame in leaf_first:
            states = self._closure(
                to for state in states for token, to in self._edges[state] if token is not None and frame.matches(token)
            )
            if not states:
                return False
        return self._accept in states if complete else True

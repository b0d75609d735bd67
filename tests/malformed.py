"""Files of claims and rules as they should not be, with what is said of them."""

import json

CLAIM = {
    "source": "Theorem 1",
    "origin": "paper",
    "says": "a < b",
    "kind": "exact",
    "unit": "of classes",
    "holds": "value >= 0.4",
}


def toml(**tables) -> str:
    lines = []
    for id, table in tables.items():
        lines += [f"[{id}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items())]
    return "\n".join(lines)


FILES = {
    "no TOML": ("[first", "tiny/claims.toml: "),
    "a key twice": (toml(first=CLAIM) + '\nkind = "exact"', "tiny/claims.toml: "),
    "no table": ("first = 1", "[first]: is not a table"),
    "an id with capitals": (toml(First=CLAIM), "[First]: an id is in kebab-case"),
    "a missing key": (toml(first={k: v for k, v in CLAIM.items() if k != "unit"}), "[first]: unit is missing"),
    "an unknown key": (toml(first=CLAIM | {"criterion": "a"}), "there is no key 'criterion'"),
    "a wrong type": (toml(first=CLAIM | {"headline": "yes"}), "headline = 'yes' is of the wrong type"),
    "an empty text": (toml(first=CLAIM | {"says": " "}), "says is empty"),
    "an unknown kind": (toml(first=CLAIM | {"kind": "large"}), "kind 'large' is none of exact, scaled, stand-in"),
    "an unknown origin": (toml(first=CLAIM | {"origin": "us"}), "origin 'us' is none of paper, erratum, ours"),
    "no rule": (toml(first=CLAIM | {"holds": "value >="}), "[first]: 'value >=' is not a rule"),
    "no runs": (toml(first=CLAIM | {"runs": 0}), "0 runs of the same kind would not meet"),
    "too few runs": (toml(first=CLAIM | {"runs": 15, "holds": "value >= 0.8"}), "15 runs of the same kind would not meet"),
    "too many headlines": (toml(**{f"c{n}": CLAIM | {"headline": True} for n in range(9)}), "more than 8 claims are headlines"),
}

RULES = {
    "nothing": "",
    "no expression": "value >=",
    "no comparison": "value",
    "a number alone": "1 < 2",
    "a call": "abs(value) < 1",
    "a power": "value ** 2 < 1",
    "text": "value < 'a'",
    "a truth value": "value < True",
    "membership": "value in values",
    "an attribute": "value.real < 1",
    "an index": "value[0] < 1",
    "a difference of measured names": "value - other < 1",
    "a ratio of measured names": "value / other < 1",
    "a division by what is measured": "1 / value < 1",
    "a division by zero": "value / 0 < 1",
    "a comparison within a sum": "1 + (value < 2) < 1",
    "truth of a number": "value and other < 1",
    "two lines": "value < 1\nother < 1",
}

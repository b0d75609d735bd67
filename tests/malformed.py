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
    "no table": ("first = 1", "[first]: expected a table, got 1"),
    "an id with capitals": (toml(First=CLAIM), "[First]: expected an id in kebab-case"),
    "a missing key": (toml(first={k: v for k, v in CLAIM.items() if k != "unit"}), "[first]: unit is missing"),
    "an unknown key": (toml(first=CLAIM | {"criterion": "a"}), "unknown key 'criterion'; expected one of source"),
    "a wrong type": (toml(first=CLAIM | {"headline": "yes"}), "headline must be of type bool, got 'yes'"),
    "a full stop": (toml(first=CLAIM | {"says": "It is so."}), "says must have no full stop at its end"),
    "an empty text": (toml(first=CLAIM | {"says": " "}), "says must not be empty"),
    "an unknown kind": (toml(first=CLAIM | {"kind": "large"}), "kind must be one of exact, scaled, stand-in, got 'large'"),
    "an unknown origin": (toml(first=CLAIM | {"origin": "us"}), "origin must be one of paper, erratum, ours, got 'us'"),
    "no rule": (toml(first=CLAIM | {"holds": "value >="}), "[first]: expected a rule such as 'value >= 0.8', got 'value >='"),
    "no runs": (toml(first=CLAIM | {"runs": 0}), "expected enough runs for 'value >= 0.4' to hold, got 0"),
    "too few runs": (toml(first=CLAIM | {"runs": 15, "holds": "value >= 0.8"}), "to hold, got 15"),
    "more runs than are searched": (toml(first=CLAIM | {"runs": 10**30}), "runs must be at most 1000000, got 1" + 30 * "0"),
    "a number that is none": (toml(first=CLAIM) + "\npaper = nan", "[first]: paper must be a finite number, got nan"),
    "an infinite number": (toml(first=CLAIM) + "\npaper = -inf", "[first]: paper must be a finite number, got -inf"),
    "a number beyond float64": (toml(first=CLAIM | {"paper": 10**400}), "[first]: paper must be a finite number, got 10000"),
    "a number of too many digits": (toml(first=CLAIM) + "\npaper = 1" + "0" * 5000, "tiny/claims.toml: "),
    "deep nesting": (toml(first=CLAIM) + "\npaper = " + "[" * 5000, "tiny/claims.toml: "),
    "too many headlines": (toml(**{f"c{n}": CLAIM | {"headline": True} for n in range(9)}), "at most 8 headlines, got 9"),
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

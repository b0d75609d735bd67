"""One module per paper: closed forms, bounds and oracles as functions of plain numbers and arrays, in float64."""

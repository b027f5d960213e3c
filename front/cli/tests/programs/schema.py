"""Validates a report against the published schema: schema.py SCHEMA.json REPORT.json"""

import json
import sys

from jsonschema import Draft202012Validator

schema, report = (json.load(open(path, encoding="utf-8")) for path in sys.argv[1:])
Draft202012Validator.check_schema(schema)
errors = list(Draft202012Validator(schema).iter_errors(report))
for error in errors:
    print(f"{error.json_path}: {error.message}")
# What a schema that demands nothing would let pass.
for key in report:
    part = {name: value for name, value in report.items() if name != key}
    if Draft202012Validator(schema).is_valid(part):
        errors.append(key)
        print(f"a report without {key} is valid")
unknown = set(report) - set(schema["properties"])
if unknown:
    print(f"not in the schema: {unknown}")
sys.exit(bool(errors or unknown))

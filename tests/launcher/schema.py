"""The part of JSON Schema that docs/report.schema.json uses. Where the package jsonschema is installed, it is asked too."""
TYPES = {
    "object": dict, "array": list, "string": str, "boolean": bool, "null": type(None),
    "integer": int, "number": (int, float),
}
KNOWN = {"$schema", "$id", "$defs", "$ref", "title", "description", "type", "properties", "required", "additionalProperties",
         "items", "enum", "const", "minimum"}


def resolve(schema, root):
    while "$ref" in schema:
        target = root
        for part in schema["$ref"].removeprefix("#/").split("/"):
            target = target[part]
        schema = target
    return schema


def errors(value, schema, root=None, where="$"):
    """Every place at which `value` is not what the schema says."""
    root = root or schema
    schema = resolve(schema, root)
    unknown = set(schema) - KNOWN
    if unknown:
        return [f"the schema at {where} uses {unknown}, which this check does not know"]
    found = []
    types = schema.get("type", list(TYPES))
    types = types if isinstance(types, list) else [types]
    if not any(isinstance(value, TYPES[name]) and (name == "boolean" or not isinstance(value, bool)) for name in types):
        return [f"{where} is {value!r:.60}, not {' or '.join(types)}"]
    if "enum" in schema and value not in schema["enum"] or "const" in schema and value != schema["const"]:
        found.append(f"{where} is {value!r:.60}")
    if "minimum" in schema and isinstance(value, (int, float)) and value < schema["minimum"]:
        found.append(f"{where} is {value}, below {schema['minimum']}")
    if isinstance(value, dict):
        known = schema.get("properties", {})
        found += [f"{where} has no {name}" for name in schema.get("required", []) if name not in value]
        for name, member in value.items():
            rest = schema.get("additionalProperties", True)
            if name in known:
                found += errors(member, known[name], root, f"{where}.{name}")
            elif rest is False:
                found.append(f"{where} has {name}, which the schema does not know")
            elif rest is not True:
                found += errors(member, rest, root, f"{where}.{name}")
    if isinstance(value, list) and "items" in schema:
        for i, item in enumerate(value):
            found += errors(item, schema["items"], root, f"{where}[{i}]")
    try:
        import jsonschema
    except ImportError:
        return found
    if where == "$":
        found += [error.message for error in jsonschema.Draft202012Validator(root).iter_errors(value)]
    return found

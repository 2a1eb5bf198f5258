//! Files that are right → a spec without a word; and the schema that editors use, kept beside the docs.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::disallowed_macros,
    reason = "a test reads its samples, keeps the time and prints; core itself must not"
)]

use raftsman_core::spec::{ByteSize, Duration, EtcdVersion, Members, Retention, Spec, read, schema};

const MINIMAL: &str = "fleet: shop\netcd:\n  main:\n    members: 3\n";

fn docs() -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference")
}

/// The YAML blocks of the reference, each of which is a whole file.
fn examples() -> Vec<String> {
    let text = std::fs::read_to_string(docs().join("file.md")).expect("docs/reference/file.md");
    let blocks = text.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next());
    blocks.filter(|block| block.lines().any(|line| line.starts_with("fleet:"))).map(str::to_owned).collect()
}

fn clean(text: &str) -> Spec {
    let reading = read(text);
    assert!(reading.diagnostics.is_empty(), "{}", reading.render("raftsman.yaml", text, false));
    reading.spec.expect("a spec")
}

#[test]
fn the_minimal_file_is_short_and_clean() {
    assert!(MINIMAL.lines().count() < 15);
    let spec = clean(MINIMAL);
    let main = &spec.etcd["main"];
    assert_eq!(main.members, Members::Count(3));
    assert_eq!(main.version, EtcdVersion::default());
    assert_eq!(main.quota, ByteSize::gib(8));
    assert_eq!(main.timers.given().expect("given").election, Duration::from_millis(1000));
    assert_eq!(main.auto_compaction.retention, Retention::Revisions(1000));
    assert_eq!(main.certificates.validity, Duration::from_days(90));
    assert_eq!(spec.state, ".raftsman");
}

#[test]
fn the_examples_of_the_reference_are_clean() {
    let examples = examples();
    assert!(examples.len() >= 2, "{} examples", examples.len());
    for example in examples {
        clean(&example);
    }
}

#[test]
fn what_was_read_can_be_written_and_read_again() {
    for text in examples() {
        let spec = clean(&text);
        let json = serde_json::to_string(&spec).expect("JSON");
        // JSON is YAML: what is written by programs must read the same.
        assert_eq!(clean(&json), spec);
        assert_eq!(serde_json::from_str::<Spec>(&json).expect("a spec"), spec);
    }
}

#[test]
fn aliases_stand_for_their_values() {
    let text = "fleet: shop\netcd:\n  a:\n    members: 3\n    timers: &far { heartbeat: 300ms, election: 3s }\n  b:\n    members: 5\n    timers: *far\n";
    let spec = clean(text);
    assert_eq!(spec.etcd["a"].timers, spec.etcd["b"].timers);
}

#[test]
fn line_ends_and_byte_order_marks_do_not_matter() {
    assert_eq!(clean(&MINIMAL.replace('\n', "\r\n")), clean(MINIMAL));
    assert_eq!(clean(&format!("\u{feff}{MINIMAL}")), clean(MINIMAL));
    assert_eq!(clean(&format!("---\n{MINIMAL}...\n")), clean(MINIMAL));
}

/// Run with `UPDATE_SCHEMA=1` to write it anew.
#[test]
fn the_schema_beside_the_docs_is_current() {
    let path = docs().join("raftsman.schema.json");
    let mut now = serde_json::to_string_pretty(&schema()).expect("JSON");
    now.push('\n');
    if std::env::var_os("UPDATE_SCHEMA").is_some() {
        std::fs::write(&path, &now).expect("docs/reference");
    }
    let then = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(now == then, "{} is out of date: run the tests with UPDATE_SCHEMA=1", path.display());
}

/// Follows the parts of the schema that the format uses; enough to notice a schema that refuses a good file.
fn fits(root: &serde_json::Value, schema: &serde_json::Value, value: &serde_json::Value) -> Result<(), String> {
    use serde_json::Value;
    if let Some(name) = schema.get("$ref").and_then(Value::as_str) {
        return fits(root, &root["$defs"][name.rsplit('/').next().unwrap_or_default()], value);
    }
    for key in ["anyOf", "oneOf"] {
        if let Some(choices) = schema.get(key).and_then(Value::as_array) {
            let fitting = choices.iter().filter(|choice| fits(root, choice, value).is_ok()).count();
            let wanted = if key == "oneOf" { fitting == 1 } else { fitting > 0 };
            return if wanted { Ok(()) } else { Err(format!("{value} fits {fitting} of {schema}")) };
        }
    }
    if let Some(constant) = schema.get("const") {
        return if constant == value { Ok(()) } else { Err(format!("{value} is not {constant}")) };
    }
    if let Some(known) = schema.get("enum").and_then(Value::as_array) {
        return if known.contains(value) { Ok(()) } else { Err(format!("{value} is not in {known:?}")) };
    }
    let is = |kind: &str| match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        _ => value.is_null(),
    };
    let kind = match schema.get("type") {
        Some(Value::String(kind)) => is(kind),
        Some(Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).any(is),
        _ => true,
    };
    if !kind {
        return Err(format!("{value} is not {}", schema["type"]));
    }
    if let Value::Array(items) = value {
        return items.iter().try_for_each(|item| fits(root, &schema["items"], item));
    }
    let Value::Object(object) = value else { return Ok(()) };
    for required in schema.get("required").and_then(Value::as_array).into_iter().flatten() {
        let key = required.as_str().unwrap_or_default();
        object.get(key).ok_or_else(|| format!("{key} is missing in {value}"))?;
    }
    for (key, value) in object {
        let named = schema.get("properties").and_then(|known| known.get(key));
        let by_pattern =
            || schema.get("patternProperties").and_then(Value::as_object).and_then(|map| map.values().next());
        match named.or_else(by_pattern).or_else(|| schema.get("additionalProperties")) {
            Some(Value::Bool(false)) => return Err(format!("{key} is not allowed")),
            Some(schema) => fits(root, schema, value)?,
            None => {}
        }
    }
    Ok(())
}

#[test]
fn the_schema_takes_the_examples() {
    let schema = schema();
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
    for text in examples() {
        let value = serde_json::to_value(clean(&text)).expect("JSON");
        assert_eq!(fits(&schema, &schema, &value), Ok(()));
    }
    let unknown = serde_json::json!({ "fleet": "shop", "etcd": { "main": { "membres": 3 } } });
    assert!(fits(&schema, &schema, &unknown).is_err());
}

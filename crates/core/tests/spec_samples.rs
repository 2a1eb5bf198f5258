//! Files that are right → a spec without a word; and the schema that editors use, kept beside the docs.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::disallowed_macros,
    reason = "a test reads its samples, keeps the time and prints; core itself must not"
)]

use raftsman_core::spec::{ByteSize, Duration, EtcdVersion, Members, PostgresCluster, Retention, Spec, read, schema};

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

const AGE: &str = "age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p";

/// Every key of a PostgreSQL cluster.
fn everything() -> serde_json::Value {
    let digest = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    serde_json::json!({
        "etcd": "main",
        "nodes": [
            { "name": "pg-1", "address": "10.77.0.21", "zone": "kvm1", "patroni_name": "one", "tags": { "clonefrom": true } },
            { "name": "pg-2", "address": "10.77.0.22", "zone": "kvm2", "machine": { "memory": "16GiB" } },
            { "name": "pg-3", "tags": { "noloadbalance": true, "failover_priority": 1 } },
            { "name": "pg-4", "tags": { "nofailover": true, "nosync": true } }
        ],
        "machines": {
            "vcpus": 4, "memory": "8GiB", "data_disk": "100GiB", "node_exporter": true,
            "firewall": { "postgres_from": ["10.0.0.0/8"], "rest_from": ["10.9.0.7"], "operators_from": ["10.0.0.0/8"] },
            "logs": { "patroni_tag": "pg.app", "node_exporter_tag": "pg.node" }
        },
        "version": "17.11",
        "source": { "archive": { "url": "https://example.com/postgresql-17.11.tar", "sha256": digest } },
        "patroni": {
            "version": "4.1.5",
            "source": { "bundle": { "file": "patroni-{version}.tar", "sha256": { "4.1.4": digest, "4.1.5": digest } } },
            "scope": "app", "namespace": "/service/", "ttl": 30, "loop_wait": 10, "retry_timeout": 10,
            "primary_start_timeout": 300, "primary_stop_timeout": 300, "maximum_lag_on_failover": "1MiB"
        },
        "parameters": { "max_connections": 200, "shared_preload_libraries": "pg_stat_statements", "jit": false },
        "superuser": { "password": { "file": "superuser.password" } },
        "replicator": { "password": { "env": "REPLICATOR_PASSWORD" } },
        "rewind": {},
        "roles": {
            "app": { "password": { "file": "app.password" }, "connection_limit": 100, "member_of": ["readers", "pg_monitor"] },
            "readers": { "login": false, "createdb": true, "createrole": true, "settings": { "work_mem": "64MB" } }
        },
        "databases": { "app": { "owner": "app", "encoding": "UTF8", "locale": "C.UTF-8", "extensions": ["pg_stat_statements"] } },
        "access": [{ "databases": ["app"], "users": ["app"], "from": ["10.0.0.0/8", "fd00::1"] }],
        "ca": { "brought": { "certificate": "pg-ca.pem", "key": { "file": "pg-ca.key" } } },
        "certificates": { "organization": "Shop", "extra_names": ["pg.example.com"], "extra_addresses": ["10.0.0.5"] },
        "synchronous": { "mode": "quorum", "nodes": 1 },
        "failsafe": true,
        "watchdog": { "mode": "required", "device": "/dev/watchdog", "safety_margin": 5 },
        "backups": { "full_every": "7d", "diff_every": "1d", "keep_full": 4, "drill_every": "1d" },
        "restore_from": { "cluster": "old", "at": "2026-11-16T07:00:00Z", "backup": "20261116-070000F" },
        "prevent_destroy": true
    })
}

/// A file with every key of a PostgreSQL cluster has nothing wrong in it but that this version does not carry it out.
#[test]
fn every_key_of_a_postgresql_cluster_is_read() {
    let text = format!(
        "fleet: shop\nmachines:\n  provider: libvirt\n  image: debian\n  subnet: 10.77.0.0/24\n  install_dependencies: false\n  \
         zones:\n    kvm1: {{ libvirt: {{ uri: qemu+ssh://kvm1/system }} }}\n    kvm2: {{ libvirt: {{ uri: qemu+ssh://kvm2/system }} }}\n    \
         kvm3: {{ libvirt: {{ uri: qemu+ssh://kvm3/system }} }}\n\
         etcd:\n  main: {{ members: 3, auth: {{ mode: password }} }}\n\
         postgres: {{ app: {} }}\nbackups: {{ store: {{ directory: /srv/backups }}, every: 1d, encrypt_to: [{AGE}] }}\n",
        everything()
    );
    let reading = read(&text);
    let mut codes: Vec<&str> = reading.diagnostics.iter().map(|d| d.code).collect();
    codes.dedup();
    assert_eq!(codes, ["postgres-later"], "{}", reading.render("raftsman.yaml", &text, false));
    assert_eq!(reading.timings.keys().map(|name| name.as_str()).collect::<Vec<_>>(), ["app"]);
}

#[test]
fn a_postgresql_cluster_can_be_written_and_read_again() {
    let schema = schema();
    let minimal = serde_json::json!({ "etcd": "main", "nodes": 3 });
    let external = serde_json::json!({
        "etcd": { "endpoints": ["10.0.0.5:2379"], "ca_cert": "ca.pem", "username": "p", "password": { "file": "p" } },
        "nodes": 3, "synchronous": { "mode": "off" }
    });
    for value in [everything(), minimal, external] {
        assert_eq!(fits(&schema, &schema["$defs"]["PostgresCluster"], &value), Ok(()));
        let cluster: PostgresCluster = serde_json::from_value(value).expect("a cluster");
        let written = serde_json::to_value(&cluster).expect("JSON");
        assert_eq!(fits(&schema, &schema["$defs"]["PostgresCluster"], &written), Ok(()));
        assert_eq!(serde_json::from_value::<PostgresCluster>(written).expect("a cluster"), cluster);
    }
}

/// The example of the Terraform module, translated: what it is told, and how long its writes stop.
#[test]
fn the_modules_own_example() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/postgres-module.yaml");
    let text = std::fs::read_to_string(path).expect("tests/fixtures/postgres-module.yaml");
    let reading = read(&text);
    let mut codes: Vec<&str> = reading.diagnostics.iter().map(|d| d.code).collect();
    codes.dedup();
    assert_eq!(codes, ["validity-long", "postgres-later"], "{}", reading.render("postgres-module.yaml", &text, false));
    let pauses = &reading.timings["patroni"].pauses;
    let table: String =
        pauses.iter().map(|pause| format!("{}: {}\n", pause.case.describe(), pause.describe())).collect();
    insta::assert_snapshot!(table, @"
    the primary is lost: 71 s
    the primary is lost, a standby was ahead and is rewound: 85 s + 1 s for each 50 MB
    PostgreSQL crashes on the primary: 320.5 s
    the synchronous standby is lost: 6.5 s
    the synchronous standby's machine is lost: 11.5 s
    etcd's majority is lost: 0.5 s
    etcd's majority is lost while a node does not answer: until etcd is back, then 18.5 s
    switchover: 310.5 s, expected 5 s
    a primary that cannot reach etcd is demoted within: 15 s
    ");
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

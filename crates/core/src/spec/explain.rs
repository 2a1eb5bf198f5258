//! A key of the file, such as `etcd.main.quota` → what it means, what may be written there, and an example.

use serde::Serialize;
use serde_json::Value;

use super::fault::nearest;
use super::units::quoted;

/// What a key means.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// The key, as it was asked for.
    pub key: String,
    /// What it means.
    pub meaning: String,
    /// What may be written there, such as `size` or `list`.
    pub kind: String,
    /// What holds where it is not written.
    pub default: Option<String>,
    /// Words that may be written there, with what they mean.
    pub values: Vec<Entry>,
    /// Keys below it, with what they mean.
    pub keys: Vec<Entry>,
    /// How it is written.
    pub example: String,
}

/// A word and its meaning.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// The word.
    pub name: String,
    /// What it means.
    pub meaning: String,
}

/// The file has no such key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the file has no key {}{}: {help}", quoted(key), if within.is_empty() { String::new() } else { format!(" below `{within}`") })]
pub struct NoSuchKey {
    key: String,
    within: String,
    help: String,
}

/// Explains a key; an empty one is the whole file. Names of clusters, users and roles, and indices, may be any.
///
/// The code of a warning of which there is more to say than its message does is explained, too.
pub fn explain(key: &str) -> Result<Explanation, NoSuchKey> {
    if let Some(warning) = warning(key) {
        return Ok(warning);
    }
    let schema = super::schema();
    let book = Book { schema: &schema };
    let segments: Vec<&str> =
        key.split(['.', '[']).map(|s| s.trim_end_matches(']')).filter(|s| !s.is_empty()).collect();
    let mut node = &schema;
    let mut variant = String::new();
    for (at, segment) in segments.iter().enumerate() {
        (node, variant) = book.step(node, segment).ok_or_else(|| {
            let names: Vec<String> = book.keys(node).into_iter().map(|entry| entry.name).collect();
            let known: Vec<&str> = names.iter().map(String::as_str).collect();
            let elsewhere = if at == 0 { book.places(segment) } else { Vec::new() };
            let help = match (nearest(segment, &known), known.is_empty()) {
                _ if !elsewhere.is_empty() => format!("did you mean `{}`?", elsewhere.join("` or `")),
                (Some(meant), _) => format!("did you mean `{meant}`?"),
                (None, true) => "it holds a value, and no keys".to_owned(),
                (None, false) => format!("the keys there are `{}`", known.join("`, `")),
            };
            NoSuchKey { key: (*segment).to_owned(), within: segments[..at].join("."), help }
        })?;
    }
    Ok(Explanation {
        key: key.to_owned(),
        meaning: Some(book.meaning(node)).filter(|meaning| !meaning.is_empty()).unwrap_or(variant),
        kind: book.kind(node),
        default: node.get("default").map(written),
        values: book.values(node),
        keys: book.keys(node),
        example: example(&segments, &book, node),
    })
}

/// What a warning means, by its code.
fn warning(code: &str) -> Option<Explanation> {
    let (meaning, example) = match code {
        "zones-quorum" => (
            "The loss of one zone takes the cluster down: the members in all other zones are no majority. A zone is what \
             fails together: a KVM host, an Incus server, a rack. With libvirt and no zones, all members are on one \
             host. Two zones are never enough, because one of them holds half of the members or more; three are, with \
             members spread evenly.",
            "machines:\n  provider: libvirt\n  zones:\n    kvm1: { libvirt: { uri: qemu+ssh://root@kvm1/system } }\n    \
             kvm2: { libvirt: { uri: qemu+ssh://root@kvm2/system } }\n    \
             kvm3: { libvirt: { uri: qemu+ssh://root@kvm3/system } }\n",
        ),
        _ => return None,
    };
    Some(Explanation {
        key: code.to_owned(),
        meaning: meaning.to_owned(),
        kind: "warning".to_owned(),
        default: None,
        values: Vec::new(),
        keys: Vec::new(),
        example: example.to_owned(),
    })
}

/// No key of the file is deeper than this.
const DEEPEST: usize = 8;

/// The schema, to be looked up in.
struct Book<'a> {
    schema: &'a Value,
}

impl<'a> Book<'a> {
    /// What a node refers to, or itself.
    fn resolved(&self, node: &'a Value) -> &'a Value {
        let name = node.get("$ref").and_then(Value::as_str).and_then(|text| text.strip_prefix("#/$defs/"));
        name.and_then(|name| self.schema.get("$defs")?.get(name)).map_or(node, |target| self.resolved(target))
    }

    /// Everything that may stand there; that nothing may is left out.
    fn choices(&self, node: &'a Value) -> Vec<&'a Value> {
        let node = self.resolved(node);
        match node.get("anyOf").or_else(|| node.get("oneOf")).and_then(Value::as_array) {
            Some(list) => list.iter().filter(|one| one["type"] != "null").flat_map(|one| self.choices(one)).collect(),
            None => vec![node],
        }
    }

    /// What stands below this key, and what is said of the choice that has it: the key of a variant says nothing itself.
    fn step(&self, node: &'a Value, segment: &str) -> Option<(&'a Value, String)> {
        self.choices(node).into_iter().find_map(|choice| {
            let here = |found: &'a Value| (found, self.meaning(choice));
            let named = choice.get("properties").and_then(|keys| keys.get(segment));
            let any = choice.get("patternProperties").and_then(|any| any.as_object()?.values().next());
            let further = choice.get("additionalProperties").filter(|further| further.is_object());
            let items = choice.get("items").and_then(|items| match segment.bytes().all(|b| b.is_ascii_digit()) {
                true => Some(here(items)),
                false => self.step(items, segment),
            });
            named.or(any).or(further).map(here).or(items)
        })
    }

    /// Where the file has a key of this name, whatever it is below; `NAME` stands for a name that may be any.
    fn places(&self, key: &str) -> Vec<String> {
        let mut found = Vec::new();
        self.find(self.schema, key, &mut Vec::new(), &mut found);
        found
    }

    fn find(&self, node: &'a Value, key: &str, path: &mut Vec<&'a str>, found: &mut Vec<String>) {
        if path.len() > DEEPEST {
            return;
        }
        for choice in self.choices(node) {
            let named = choice.get("properties").and_then(Value::as_object).into_iter().flatten();
            let any = choice.get("patternProperties").and_then(|any| any.as_object()?.values().next());
            let further = choice.get("additionalProperties").filter(|further| further.is_object());
            let below = named.map(|(name, node)| (name.as_str(), node));
            for (name, node) in below.chain(any.or(further).map(|node| ("NAME", node))) {
                path.push(name);
                let place = path.join(".");
                if name == key && !found.contains(&place) {
                    found.push(place);
                }
                self.find(node, key, path, found);
                path.pop();
            }
            if let Some(items) = choice.get("items") {
                self.find(items, key, path, found);
            }
        }
    }

    fn meaning(&self, node: &'a Value) -> String {
        let said = |node: &Value| node.get("description").and_then(Value::as_str).map(|text| text.replace('\n', " "));
        said(node).or_else(|| said(self.resolved(node))).unwrap_or_default()
    }

    fn keys(&self, node: &'a Value) -> Vec<Entry> {
        let of = |choice: &'a Value| {
            let items = choice.get("items").map(|items| self.choices(items)).unwrap_or_default();
            let all = std::iter::once(choice).chain(items);
            let below = all.filter_map(|one| one.get("properties")?.as_object()).flatten();
            let meaning = |node: &'a Value| Some(self.meaning(node)).filter(|meaning| !meaning.is_empty());
            let entry = |(name, node): (&String, &'a Value)| Entry {
                name: name.clone(),
                meaning: meaning(node).unwrap_or_else(|| self.meaning(choice)),
            };
            below.map(entry).collect::<Vec<_>>()
        };
        self.choices(node).into_iter().flat_map(of).collect()
    }

    fn values(&self, node: &'a Value) -> Vec<Entry> {
        let of = |choice: &'a Value| match (choice.get("const"), choice.get("enum").and_then(Value::as_array)) {
            (Some(word), _) => vec![Entry { name: written(word), meaning: self.meaning(choice) }],
            (None, Some(words)) => {
                words.iter().map(|word| Entry { name: written(word), meaning: String::new() }).collect()
            }
            (None, None) => Vec::new(),
        };
        self.choices(node).into_iter().flat_map(of).collect()
    }

    /// What may be written, by the names of `docs/reference/file.md` where it has one.
    fn kind(&self, node: &'a Value) -> String {
        let mut target = node;
        if let Some(choices) = node.get("anyOf").and_then(Value::as_array)
            && let Some(choice) = choices.iter().find(|one| one["type"] != "null")
        {
            target = choice;
        }
        match target.get("$ref").and_then(Value::as_str).and_then(|text| text.strip_prefix("#/$defs/")) {
            Some("Name") => return "name".to_owned(),
            Some("ByteSize") => return "size".to_owned(),
            Some("Duration") => return "duration".to_owned(),
            Some("EtcdVersion" | "PatroniVersion" | "PostgresVersion") => return "version".to_owned(),
            Some("Secret") => return "secret".to_owned(),
            _ => {}
        }
        let mut kinds: Vec<&str> = Vec::new();
        for choice in self.choices(node) {
            let word = match choice.get("type").and_then(Value::as_str) {
                Some("boolean") => "`true` or `false`",
                Some("integer" | "number") => "number",
                Some("array") => "list",
                Some("object") => "mapping",
                Some("string") if choice.get("const").is_some() || choice.get("enum").is_some() => {
                    "one of the words below"
                }
                _ => "text",
            };
            if !kinds.contains(&word) {
                kinds.push(word);
            }
        }
        kinds.join(", or ")
    }
}

/// A value as YAML has it on one line.
fn written(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The key with a value, in its place in the file.
fn example(segments: &[&str], book: &Book<'_>, node: &Value) -> String {
    let Some((last, above)) = segments.split_last() else {
        return "fleet: shop\netcd:\n  main:\n    members: 3\n".to_owned();
    };
    let mut out = String::new();
    let mut indent = 0;
    for segment in above.iter().filter(|segment| !segment.bytes().all(|b| b.is_ascii_digit())) {
        let name = if *segment == "*" { "main" } else { segment };
        out.push_str(&format!("{}{name}:\n", " ".repeat(indent)));
        indent += 2;
    }
    let words = book.values(node);
    let value = match (node.get("default"), words.last(), book.kind(node).as_str()) {
        (Some(default), ..) => written(default),
        (None, Some(word), _) => word.name.clone(),
        (None, None, "size") => "8GiB".to_owned(),
        (None, None, "duration") => "10m".to_owned(),
        (None, None, "version") => "3.6.15".to_owned(),
        (None, None, "secret") => "{ file: secret.txt }".to_owned(),
        (None, None, "`true` or `false`") => "true".to_owned(),
        (None, None, "name") => "shop".to_owned(),
        (None, None, kind) if kind.starts_with("number") => "3".to_owned(),
        (None, None, kind) if kind.starts_with("list") => "[…]".to_owned(),
        (None, None, kind) if kind.starts_with("mapping") => "{ … }".to_owned(),
        (None, None, _) => "…".to_owned(),
    };
    out.push_str(&format!("{}{last}: {value}\n", " ".repeat(indent)));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_explained() {
        let quota = explain("etcd.main.quota").unwrap();
        assert_eq!(quota.meaning, "The size at which the database stops taking writes.");
        assert_eq!((quota.kind.as_str(), quota.default.as_deref()), ("size", Some("8GiB")));
        assert_eq!(quota.example, "etcd:\n  main:\n    quota: 8GiB\n");
        assert!(quota.keys.is_empty() && quota.values.is_empty());
        let mode = explain("etcd.*.auth.mode").unwrap();
        let words: Vec<&str> = mode.values.iter().map(|v| v.name.as_str()).collect();
        assert_eq!(words, ["certificate", "password", "none"]);
        assert_eq!(mode.example, "etcd:\n  main:\n    auth:\n      mode: certificate\n");
    }

    #[test]
    fn a_warning_is_explained() {
        let zones = explain("zones-quorum").unwrap();
        assert_eq!(zones.kind, "warning");
        assert!(zones.meaning.contains("no majority") && zones.example.contains("kvm3"));
        assert!(explain("machines.zones.kvm1.libvirt.uri").is_ok() && explain("etcd.main.members.zone").is_ok());
    }

    #[test]
    fn a_section_lists_its_keys() {
        let names = |key: &str| explain(key).unwrap().keys.into_iter().map(|k| k.name).collect::<Vec<_>>();
        assert_eq!(
            names(""),
            ["fleet", "state", "machines", "etcd", "postgres", "balancers", "backups", "accept_warnings"]
        );
        assert!(names("etcd.main").contains(&"prevent_destroy".to_owned()));
        assert!(names("etcd.main.members").contains(&"address".to_owned()));
        let meaning = |key: &str| explain(key).unwrap().meaning;
        assert_eq!(meaning("etcd.main.members[0].address"), meaning("etcd.main.members.address"));
        assert_eq!(meaning("etcd.main.source.file"), "This binary. Relative to this file.", "the variant says it");
        assert!(explain("etcd.main.members[1].name").is_ok() && explain("etcd.main.members.name").is_ok());
        assert!(explain("backups.every").unwrap().kind == "duration");
    }

    #[test]
    fn a_key_that_is_not_there_is_named() {
        let no = |key: &str| explain(key).unwrap_err().to_string();
        assert_eq!(no("quota"), "the file has no key `quota`: did you mean `etcd.NAME.quota`?");
        assert_eq!(no("etcd.main.quotta"), "the file has no key `quotta` below `etcd.main`: did you mean `quota`?");
        assert_eq!(
            no("etcd.main.quota.max"),
            "the file has no key `max` below `etcd.main.quota`: it holds a value, and no keys"
        );
        assert_eq!(
            no("zzz"),
            "the file has no key `zzz`: the keys there are `fleet`, `state`, `machines`, `etcd`, `postgres`, `balancers`, `backups`, `accept_warnings`"
        );
    }

    /// Every key of the schema has a meaning, a kind and an example.
    #[test]
    fn every_key_is_explained() {
        fn walk(key: &str, depth: usize) -> usize {
            let found = explain(key).unwrap_or_else(|error| panic!("{key}: {error}"));
            assert!(!found.meaning.is_empty(), "{key}: no meaning");
            assert!(!found.kind.is_empty() && found.example.ends_with('\n'), "{key}: {found:?}");
            let below = found.keys.iter().filter(|_| depth < 6);
            1 + below
                .map(|entry| walk(format!("{key}.{}", entry.name).trim_start_matches('.'), depth + 1))
                .sum::<usize>()
        }
        assert!(walk("", 0) + walk("etcd.main", 0) > 80);
        // The keys of machines are those of etcd's.
        let ours = explain("postgres.app").unwrap().keys.into_iter().filter(|entry| entry.name != "machines");
        assert!(ours.map(|entry| walk(&format!("postgres.app.{}", entry.name), 2)).sum::<usize>() > 60);
    }
}

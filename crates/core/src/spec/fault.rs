//! What serde says about a value → an error that knows its place in the tree.

use std::fmt;

use serde::de::{self, Unexpected};

use super::document::{Kind, Node, Span};
use super::units::quoted;

/// Why a value could not be decoded. Boxed, because every `Result` on the way carries it.
#[derive(Debug)]
pub(super) struct Fault(Box<Inner>);

#[derive(Debug)]
struct Inner {
    cause: Cause,
    place: Option<Span>,
    /// Steps from the failing node up to the section's root: positions of children.
    trail: Vec<usize>,
}

#[derive(Debug)]
pub(super) enum Cause {
    /// A sentence, and perhaps a second one with the remedy.
    Said {
        code: &'static str,
        message: String,
        help: Option<String>,
    },
    /// Something else was expected here.
    Expected(String),
    UnknownKey {
        key: String,
        known: &'static [&'static str],
    },
    UnknownWord {
        word: String,
        known: &'static [&'static str],
    },
    MissingKey(&'static str),
}

/// Messages ready to be shown.
pub(super) struct Description {
    pub(super) code: &'static str,
    pub(super) message: String,
    pub(super) help: Option<String>,
    /// The key that an unknown key probably stood for.
    pub(super) meant: Option<&'static str>,
}

impl Fault {
    pub(super) fn new(cause: Cause) -> Self {
        Self(Box::new(Inner { cause, place: None, trail: Vec::new() }))
    }

    pub(super) fn said(code: &'static str, message: impl Into<String>, help: impl Into<String>) -> Self {
        Self::new(Cause::Said { code, message: message.into(), help: Some(help.into()) })
    }

    /// The innermost place counts: later ones are on the way up.
    pub(super) fn at(mut self, span: &Span) -> Self {
        self.0.place.get_or_insert_with(|| span.clone());
        self
    }

    /// Describes what was found instead, once the node is known.
    pub(super) fn found(mut self, node: &Node, hush: bool) -> Self {
        if self.0.place.is_none() {
            self.0.place = Some(node.head());
            let found = found(node, hush);
            match &mut self.0.cause {
                Cause::Expected(what) => {
                    let (code, help) = ("wrong-type", spelled_bool(node, what));
                    let message = format!("expected {what}, found {found}");
                    self.0.cause = Cause::Said { code, message, help };
                }
                // The standard library's own messages say little.
                Cause::Said { code, message, help } if message.ends_with("address syntax") => {
                    *code = "wrong-type";
                    *message = format!("expected an IP address such as `10.0.0.5`, found {found}");
                    *help = Some("write the address itself: no name, no port, no prefix length".to_owned());
                }
                Cause::Said { message, help, .. } if hush => {
                    "this value is not valid".clone_into(message);
                    *help = None;
                }
                _ => {}
            }
        }
        self
    }

    pub(super) fn step(mut self, index: usize) -> Self {
        self.0.trail.push(index);
        self
    }

    pub(super) fn into_parts(self) -> (Cause, Option<Span>, Vec<usize>) {
        let mut inner = *self.0;
        inner.trail.reverse();
        (inner.cause, inner.place, inner.trail)
    }
}

/// Names that Patroni had for its keys up to 3.0.
const RENAMED: [(&str, &str); 2] =
    [("master_start_timeout", "primary_start_timeout"), ("master_stop_timeout", "primary_stop_timeout")];

impl Cause {
    pub(super) fn describe(self) -> Description {
        let description = |code, message, help, meant| Description { code, message, help, meant };
        match self {
            Self::Said { code, message, help } => description(code, message, help, None),
            Self::Expected(what) => description("wrong-type", format!("expected {what}"), None, None),
            Self::MissingKey(key) => description(
                "missing-key",
                format!("the key `{key}` is missing"),
                Some(format!("add {}", example(key))),
                None,
            ),
            Self::UnknownKey { key, known } => {
                let renamed = RENAMED.iter().find(|(old, new)| *old == key && known.contains(new)).map(|(_, new)| *new);
                let meant = renamed.or_else(|| nearest(&key, known));
                let help = match (meant, key.as_str()) {
                    (Some(meant), _) if renamed.is_some() => format!("it is called `{meant}` now"),
                    (_, "method") if known.contains(&"databases") => {
                        "every rule is `hostssl` with `scram-sha-256`: there is no `trust`, `md5`, `password` or `ident`"
                            .to_owned()
                    }
                    (_, "<<") => {
                        "YAML 1.2 has no merge keys: alias a whole value instead, such as `timers: *slow`".to_owned()
                    }
                    (Some(meant), _) => format!("did you mean `{meant}`?"),
                    (None, _) => listed("the keys here are", known),
                };
                description("unknown-key", format!("unknown key {}", quoted(&key)), Some(help), meant)
            }
            Self::UnknownWord { word, known } => {
                let help = match nearest(&word, known) {
                    Some(meant) => format!("did you mean `{meant}`? {}", listed("One of", known)),
                    None => listed("write one of", known),
                };
                description(
                    "unknown-value",
                    format!("{} is not one of the values this key takes", quoted(&word)),
                    Some(help),
                    None,
                )
            }
        }
    }
}

/// A value for each required key, to be copied.
fn example(key: &str) -> String {
    let value = match key {
        "fleet" => "shop",
        "members" => "3",
        "etcd" => "main",
        "instances" => "2",
        "nodes" => "3",
        "name" => "etcd-1",
        "file" => "etcd-v3.6.15-linux-amd64.tar.gz",
        "sha256" => "<64 hex digits>",
        "certificate" | "ca_cert" => "ca.pem",
        "key" | "shared_key" => "{ file: ca.key }",
        "password" => "{ file: etcd.password }",
        "owner" => "app",
        "from" => "[10.0.0.0/8]",
        "databases" | "users" => "[app]",
        "full_every" => "1w",
        "host" => "logs.example.com",
        "url" => "0.pool.ntp.org",
        "threshold" => "1.0",
        "limit" => "3",
        "key_prefix" => "/fluent-bit/",
        "endpoints" => "[\"10.0.0.5:2379\"]",
        _ => "…",
    };
    format!("`{key}: {value}`")
}

fn listed(lead: &str, known: &[&str]) -> String {
    if known.is_empty() {
        return "nothing can be set here".to_owned();
    }
    let names: Vec<String> = known.iter().map(|name| format!("`{name}`")).collect();
    format!("{lead} {}", names.join(", "))
}

/// The known word that the user probably meant.
pub(super) fn nearest<'k>(word: &str, known: &[&'k str]) -> Option<&'k str> {
    if word.len() > 40 {
        return None;
    }
    let plain = word.to_lowercase().replace('-', "_");
    known
        .iter()
        .map(|known| (strsim::osa_distance(&plain, &known.replace('-', "_")), *known))
        .filter(|(distance, known)| {
            *distance <= known.len().min(plain.len()).div_ceil(3) || plain.len() > 2 && known.starts_with(&plain)
        })
        .min()
        .map(|(_, known)| known)
}

fn found(node: &Node, hush: bool) -> String {
    match &node.kind {
        _ if node.is_null() => "nothing".to_owned(),
        Kind::Scalar { .. } if hush => "something else".to_owned(),
        Kind::Scalar { text, plain: false } => format!("the text {}", quoted(text)),
        Kind::Scalar { text, .. } => quoted(text),
        Kind::List(_) => "a list".to_owned(),
        Kind::Map(_) => "a mapping".to_owned(),
    }
}

/// YAML 1.1 had more words for yes and no than 1.2 has.
fn spelled_bool(node: &Node, expected: &str) -> Option<String> {
    let Kind::Scalar { text, .. } = &node.kind else { return None };
    if !expected.contains("`true` or `false`") {
        return None;
    }
    match text.to_ascii_lowercase().as_str() {
        "yes" | "on" | "y" | "true" | "1" => Some("write `true`, without quotes".to_owned()),
        "no" | "off" | "n" | "false" | "0" => Some("write `false`, without quotes".to_owned()),
        _ => None,
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Only for serde's sake: diagnostics are made from the cause.
        write!(f, "{:?}", self.0.cause)
    }
}

impl std::error::Error for Fault {}

impl de::Error for Fault {
    fn custom<T: fmt::Display>(message: T) -> Self {
        let text = message.to_string();
        let (message, help) = match text.split_once('\n') {
            Some((message, help)) => (message.to_owned(), Some(help.to_owned())),
            None => (text, None),
        };
        Self::new(Cause::Said { code: "invalid-value", message, help })
    }

    fn invalid_type(_: Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        Self::new(Cause::Expected(expected.to_string()))
    }

    fn invalid_value(_: Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        Self::new(Cause::Expected(expected.to_string()))
    }

    fn unknown_field(key: &str, known: &'static [&'static str]) -> Self {
        Self::new(Cause::UnknownKey { key: key.to_owned(), known })
    }

    fn unknown_variant(word: &str, known: &'static [&'static str]) -> Self {
        Self::new(Cause::UnknownWord { word: word.to_owned(), known })
    }

    fn missing_field(key: &'static str) -> Self {
        Self::new(Cause::MissingKey(key))
    }
}

//! A tree of values → the types of the file, with every error and its place.

use serde::de::value::StrDeserializer;
use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error as _, IntoDeserializer, MapAccess, SeqAccess, VariantAccess,
    Visitor,
};
use serde::{Deserialize, forward_to_deserialize_any};

use super::diagnostic::{Diagnostic, Path};
use super::document::{Kind, Mapping, Node};
use super::fault::{Cause, Fault};
use super::secrecy;
use super::units::quoted;

/// The name of values that are a text where they are a scalar: sixty-four digits are no number there.
pub(super) const TEXT_OR_MORE: &str = "text or more";

/// Decodes one section; what is wrong is recorded, cut out, and the rest tried again, so that all errors
/// of the section come at once. The cost of an error is one more pass over its section.
///
/// The paths of what was cut out are added to `tainted`: nothing should be concluded from their absence.
pub(super) fn section<T>(
    node: &mut Node,
    path: &Path,
    limit: usize,
    diagnostics: &mut Vec<Diagnostic>,
    tainted: &mut Vec<Path>,
) -> Option<T>
where
    T: for<'x> Deserialize<'x>,
{
    // Silent cuts (a parent of something already reported) are bounded by the depth, but be sure.
    let mut limit = 4 * limit + 64;
    while diagnostics.len() < limit && limit > 0 {
        limit -= 1;
        let fault = match T::deserialize(Value { node, hush: false }) {
            Ok(value) => return Some(value),
            Err(fault) => fault,
        };
        let (cause, place, trail) = fault.into_parts();
        let at = place.unwrap_or_else(|| node.head());
        let (path, entry_place) = follow(node, path.clone(), &trail);
        tainted.push(path.clone());
        if let (Cause::MissingKey(key), Some(map)) = (&cause, mapping_at(node, &trail))
            && (*key == LOST || map.lost.iter().any(|lost| lost == key))
        {
            // Its key was there, and wrong, and has been reported.
            if trail.is_empty() || !prune(node, &trail, None) {
                return None;
            }
            continue;
        }
        let missing = matches!(cause, Cause::MissingKey(_));
        let description = cause.describe();
        tainted.extend(description.meant.map(|meant| path.parent().key(meant)));
        let at = if missing || at.is_empty() { entry_place.unwrap_or(at) } else { at };
        let mut diagnostic = Diagnostic::error(description.code, path, at, description.message);
        diagnostic.help = description.help;
        diagnostics.push(diagnostic);
        if trail.is_empty() || !prune(node, &trail, description.meant) {
            return None;
        }
    }
    None
}

/// The path that the trail takes from here, and the place of the key that leads to its end.
fn follow(root: &Node, mut path: Path, trail: &[usize]) -> (Path, Option<super::document::Span>) {
    let mut node = root;
    let mut place = None;
    let mut hush = false;
    for index in trail {
        match &node.kind {
            Kind::Map(map) => {
                let Some(entry) = map.entries.get(*index) else { break };
                if !hush {
                    path = path.key(&entry.key);
                }
                hush |= secrecy::is_secret_key(&entry.key);
                place = Some(entry.key_span.clone());
                node = &entry.value;
            }
            Kind::List(items) => {
                let Some(item) = items.get(*index) else { break };
                path = path.index(*index);
                place = Some(item.head());
                node = item;
            }
            Kind::Scalar { .. } => break,
        }
    }
    (path, place)
}

fn node_at<'n>(root: &'n mut Node, trail: &[usize]) -> Option<&'n mut Node> {
    let mut node = root;
    for index in trail {
        node = match &mut node.kind {
            Kind::Map(map) => &mut map.entries.get_mut(*index)?.value,
            Kind::List(items) => items.get_mut(*index)?,
            Kind::Scalar { .. } => return None,
        };
    }
    Some(node)
}

fn mapping_at<'n>(root: &'n mut Node, trail: &[usize]) -> Option<&'n mut Mapping> {
    match &mut node_at(root, trail)?.kind {
        Kind::Map(map) => Some(map),
        _ => None,
    }
}

/// Marks the node at the end of the trail so that decoding passes over it. False if it was marked before.
fn prune(root: &mut Node, trail: &[usize], meant: Option<&str>) -> bool {
    let Some((last, above)) = trail.split_last() else { return false };
    if let Some(map) = mapping_at(root, above) {
        let Some(entry) = map.entries.get_mut(*last) else { return false };
        if std::mem::replace(&mut entry.value.pruned, true) {
            return false;
        }
        let key = entry.key.clone();
        map.lost.push(key);
        map.lost.extend(meant.map(str::to_owned));
        return true;
    }
    node_at(root, trail).is_some_and(|node| !std::mem::replace(&mut node.pruned, true))
}

/// A node as serde sees it.
#[derive(Clone, Copy)]
struct Value<'t> {
    node: &'t Node,
    /// Set below a key that names a secret: messages must not repeat what is written there.
    hush: bool,
}

/// What a plain scalar is, by YAML 1.2's core schema.
enum Core<'t> {
    Null,
    Bool(bool),
    Integer(i128),
    Float(f64),
    Text(&'t str),
}

fn core(text: &str) -> Core<'_> {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Core::Null,
        "true" | "True" | "TRUE" => return Core::Bool(true),
        "false" | "False" | "FALSE" => return Core::Bool(false),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "-.inf" | ".nan" | ".NaN" | ".NAN" => return Core::Text(text),
        _ => {}
    }
    let integer = match text.get(..2) {
        Some("0x") => i128::from_str_radix(&text[2..], 16).ok().filter(|_| !text[2..].starts_with(['+', '-'])),
        Some("0o") => i128::from_str_radix(&text[2..], 8).ok().filter(|_| !text[2..].starts_with(['+', '-'])),
        _ => text.parse().ok(),
    };
    if let Some(integer) = integer {
        return Core::Integer(integer);
    }
    // Rust reads `inf` and `nan` as numbers; YAML does not.
    if text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '.' | '+' | '-'))
        && text.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'e' | b'E' | b'+' | b'-'))
        && let Ok(float) = text.parse()
    {
        return Core::Float(float);
    }
    Core::Text(text)
}

impl<'t> Value<'t> {
    fn scalar(self) -> Option<Core<'t>> {
        match &self.node.kind {
            Kind::Scalar { text, plain: true } => Some(core(text)),
            Kind::Scalar { text, plain: false } => Some(Core::Text(text)),
            _ => None,
        }
    }

    fn expected<T>(self, what: &str) -> Result<T, Fault> {
        Err(Fault::new(Cause::Expected(what.to_owned())).found(self.node, self.hush))
    }

    /// Runs a visitor, and gives its complaint this node's place unless it has one.
    fn placed<T>(self, result: Result<T, Fault>) -> Result<T, Fault> {
        result.map_err(|fault| fault.found(self.node, self.hush))
    }

    fn integer<V: Visitor<'t>>(self, visitor: V, least: i128, most: i128) -> Result<V::Value, Fault> {
        match self.scalar() {
            Some(Core::Integer(number)) if (least..=most).contains(&number) => {
                self.placed(match u64::try_from(number) {
                    Ok(number) => visitor.visit_u64(number),
                    Err(_) => visitor.visit_i64(i64::try_from(number).unwrap_or(i64::MIN)),
                })
            }
            _ => self.expected(&format!("a whole number from {least} to {most}")),
        }
    }
}

impl<'t> Deserializer<'t> for Value<'t> {
    type Error = Fault;

    fn deserialize_any<V: Visitor<'t>>(self, visitor: V) -> Result<V::Value, Fault> {
        let result = match (&self.node.kind, self.scalar()) {
            (Kind::List(items), _) => visitor.visit_seq(Items { items, at: 0, hush: self.hush }),
            (Kind::Map(map), _) => visitor.visit_map(Entries::new(map, self.hush)),
            (_, Some(Core::Bool(value))) => visitor.visit_bool(value),
            (_, Some(Core::Integer(number))) => match (u64::try_from(number), i64::try_from(number)) {
                (Ok(number), _) => visitor.visit_u64(number),
                (_, Ok(number)) => visitor.visit_i64(number),
                _ => Err(Fault::said("wrong-type", "this number is too large", "the largest is 18446744073709551615")),
            },
            (_, Some(Core::Float(number))) => visitor.visit_f64(number),
            (_, Some(Core::Text(text))) => visitor.visit_borrowed_str(text),
            (_, Some(Core::Null) | None) => visitor.visit_unit(),
        };
        self.placed(result)
    }

    fn deserialize_bool<V: Visitor<'t>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self.scalar() {
            Some(Core::Bool(value)) => self.placed(visitor.visit_bool(value)),
            _ => self.expected("`true` or `false`"),
        }
    }

    fn deserialize_u16<V: Visitor<'t>>(self, visitor: V) -> Result<V::Value, Fault> {
        self.integer(visitor, 0, i128::from(u16::MAX))
    }

    fn deserialize_u32<V: Visitor<'t>>(self, visitor: V) -> Result<V::Value, Fault> {
        self.integer(visitor, 0, i128::from(u32::MAX))
    }

    fn deserialize_i32<V: Visitor<'t>>(self, visitor: V) -> Result<V::Value, Fault> {
        self.integer(visitor, i128::from(i32::MIN), i128::from(i32::MAX))
    }

    fn deserialize_f64<V: Visitor<'t>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self.scalar() {
            Some(Core::Float(number)) => self.placed(visitor.visit_f64(number)),
            Some(Core::Integer(number)) => self.placed(visitor.visit_f64(number as f64)),
            _ => self.expected("a number"),
        }
    }

    /// A text may look like a number or a version: what was written is what counts.
    fn deserialize_str<V: Visitor<'t>>(self, visitor: V) -> Result<V::Value, Fault> {
        match &self.node.kind {
            Kind::Scalar { text, .. } if !self.node.is_null() => self.placed(visitor.visit_borrowed_str(text)),
            _ => self.placed(Err(Fault::invalid_type(serde::de::Unexpected::Unit, &visitor))),
        }
    }

    fn deserialize_string<V: Visitor<'t>>(self, visitor: V) -> Result<V::Value, Fault> {
        match &self.node.kind {
            Kind::Scalar { text, .. } if !self.node.is_null() => self.placed(visitor.visit_borrowed_str(text)),
            _ => self.expected("a text"),
        }
    }

    fn deserialize_option<V: Visitor<'t>>(self, visitor: V) -> Result<V::Value, Fault> {
        if self.node.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'t>>(self, name: &'static str, visitor: V) -> Result<V::Value, Fault> {
        match &self.node.kind {
            Kind::Scalar { text, .. } if name == TEXT_OR_MORE => self.placed(visitor.visit_borrowed_str(text)),
            _ => visitor.visit_newtype_struct(self),
        }
    }

    /// A key with nothing below is an empty list: everything under it may be commented out.
    fn deserialize_seq<V: Visitor<'t>>(self, visitor: V) -> Result<V::Value, Fault> {
        match &self.node.kind {
            Kind::List(items) => self.placed(visitor.visit_seq(Items { items, at: 0, hush: self.hush })),
            _ if self.node.is_null() => self.placed(visitor.visit_seq(Items { items: &[], at: 0, hush: false })),
            Kind::Scalar { text, .. } if !self.hush && text.len() <= 40 => Err(Fault::said(
                "wrong-type",
                format!("expected a list, found {}", quoted(text)),
                "put it in brackets: `[…]`",
            )
            .at(&self.node.span)),
            _ => self.expected("a list"),
        }
    }

    fn deserialize_map<V: Visitor<'t>>(self, visitor: V) -> Result<V::Value, Fault> {
        match &self.node.kind {
            Kind::Map(map) => self.placed(visitor.visit_map(Entries::new(map, self.hush))),
            _ if self.node.is_null() => self.placed(visitor.visit_map(Entries::new(&NOTHING, false))),
            _ => self.expected("a mapping of keys and values"),
        }
    }

    fn deserialize_struct<V: Visitor<'t>>(
        self,
        _: &'static str,
        keys: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        match &self.node.kind {
            Kind::Map(map) => self.placed(visitor.visit_map(Entries::new(map, self.hush))),
            _ if self.node.is_null() => self.placed(visitor.visit_map(Entries::new(&NOTHING, false))),
            _ => {
                let some: Vec<String> = keys.iter().take(3).map(|key| format!("`{key}`")).collect();
                self.expected(&format!("a mapping with keys such as {}", some.join(", ")))
            }
        }
    }

    fn deserialize_enum<V: Visitor<'t>>(
        self,
        name: &'static str,
        known: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        let secret = name == "Secret";
        let inner = Value { node: self.node, hush: self.hush || secret };
        match &self.node.kind {
            Kind::Scalar { .. } if secret && !self.node.is_null() => Err(Fault::said(
                "inline-secret",
                "a secret is written into the file",
                "write the secret to a file of its own, and refer to it: `{ file: path }` or `{ env: VARIABLE }`; and change it, if this file was shared",
            )
            .at(&self.node.span)),
            Kind::Scalar { text, .. } if !self.node.is_null() => {
                inner.placed(visitor.visit_enum(Choice { word: text, value: None, known, place: inner }))
            }
            Kind::Map(map) if map.entries.iter().filter(|entry| !entry.value.pruned).count() == 1 => {
                let Some((index, entry)) = map.entries.iter().enumerate().find(|(_, entry)| !entry.value.pruned) else {
                    return self.expected("a key");
                };
                let value = Value { node: &entry.value, hush: inner.hush };
                let choice = Choice { word: &entry.key, value: Some((index, value)), known, place: inner };
                let result = visitor.visit_enum(choice);
                result.map_err(|fault| fault.at(&entry.key_span))
            }
            Kind::Map(map) if map.entries.iter().any(|entry| entry.value.pruned) => {
                // All that was here has been reported already.
                Err(Fault::new(Cause::MissingKey(LOST)).found(self.node, true))
            }
            Kind::Map(map) if map.entries.len() > 1 => {
                let names: Vec<String> = known.iter().map(|known| format!("`{known}`")).collect();
                Err(Fault::said("too-many-keys", "only one key can be given here", format!("keep one of {}", names.join(", "))).at(&self.node.head()))
            }
            _ => {
                let names: Vec<String> = known.iter().map(|known| format!("`{known}`")).collect();
                inner.expected(&if secret { "`{ file: … }` or `{ env: … }`".to_owned() } else { format!("one of {}", names.join(", ")) })
            }
        }
    }

    fn deserialize_identifier<V: Visitor<'t>>(self, visitor: V) -> Result<V::Value, Fault> {
        self.deserialize_str(visitor)
    }

    fn deserialize_ignored_any<V: Visitor<'t>>(self, visitor: V) -> Result<V::Value, Fault> {
        visitor.visit_unit()
    }

    forward_to_deserialize_any! { <W: Visitor<'t>> i8 i16 i64 i128 u8 u64 u128 f32 char bytes byte_buf unit unit_struct tuple tuple_struct }
}

/// Never a key of the format: stands for one that was cut out of an enum.
const LOST: &str = "\0lost";

static NOTHING: Mapping = Mapping { entries: Vec::new(), lost: Vec::new() };

struct Items<'t> {
    items: &'t [Node],
    at: usize,
    hush: bool,
}

impl<'t> SeqAccess<'t> for Items<'t> {
    type Error = Fault;

    fn next_element_seed<T: DeserializeSeed<'t>>(&mut self, seed: T) -> Result<Option<T::Value>, Fault> {
        while let Some(node) = self.items.get(self.at) {
            self.at += 1;
            if !node.pruned {
                let index = self.at - 1;
                return seed.deserialize(Value { node, hush: self.hush }).map(Some).map_err(|fault| fault.step(index));
            }
        }
        Ok(None)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.items.len() - self.at)
    }
}

struct Entries<'t> {
    map: &'t Mapping,
    at: usize,
    hush: bool,
}

impl<'t> Entries<'t> {
    fn new(map: &'t Mapping, hush: bool) -> Self {
        Self { map, at: 0, hush }
    }
}

impl<'t> MapAccess<'t> for Entries<'t> {
    type Error = Fault;

    fn next_key_seed<K: DeserializeSeed<'t>>(&mut self, seed: K) -> Result<Option<K::Value>, Fault> {
        while let Some(entry) = self.map.entries.get(self.at) {
            self.at += 1;
            if !entry.value.pruned {
                let key: StrDeserializer<'t, Fault> = entry.key.as_str().into_deserializer();
                let index = self.at - 1;
                return seed.deserialize(key).map(Some).map_err(|fault| fault.at(&entry.key_span).step(index));
            }
        }
        Ok(None)
    }

    fn next_value_seed<V: DeserializeSeed<'t>>(&mut self, seed: V) -> Result<V::Value, Fault> {
        let index = self.at.saturating_sub(1);
        let Some(entry) = self.map.entries.get(index) else { return Err(Fault::custom("a key without a value")) };
        let hush = self.hush || secrecy::is_secret_key(&entry.key);
        seed.deserialize(Value { node: &entry.value, hush }).map_err(|fault| fault.step(index))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.map.entries.len() - self.at)
    }
}

/// One of several shapes: a word alone, or a word with a value below it.
struct Choice<'t> {
    word: &'t str,
    value: Option<(usize, Value<'t>)>,
    known: &'static [&'static str],
    place: Value<'t>,
}

impl<'t> EnumAccess<'t> for Choice<'t> {
    type Error = Fault;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'t>>(self, seed: V) -> Result<(V::Value, Self), Fault> {
        if !self.known.contains(&self.word) {
            if self.place.hush {
                return self.place.expected("`{ file: … }` or `{ env: … }`");
            }
            let (word, known) = (self.word.to_owned(), self.known);
            let fault = Fault::new(if self.value.is_some() {
                Cause::UnknownKey { key: word, known }
            } else {
                Cause::UnknownWord { word, known }
            });
            return Err(match self.value {
                Some((index, _)) => fault.step(index),
                None => fault.at(&self.place.node.span),
            });
        }
        let word: StrDeserializer<'t, Fault> = self.word.into_deserializer();
        Ok((seed.deserialize(word)?, self))
    }
}

impl<'t> VariantAccess<'t> for Choice<'t> {
    type Error = Fault;

    fn unit_variant(self) -> Result<(), Fault> {
        match self.value {
            Some((index, value)) if !value.node.is_null() => {
                let word = self.word;
                Err(Fault::said("wrong-type", format!("`{word}` takes no value"), format!("write `{word}` alone"))
                    .at(&value.node.head())
                    .step(index))
            }
            _ => Ok(()),
        }
    }

    fn newtype_variant_seed<T: DeserializeSeed<'t>>(self, seed: T) -> Result<T::Value, Fault> {
        match self.value {
            Some((index, value)) => seed.deserialize(value).map_err(|fault| fault.step(index)),
            None => {
                let word = self.word;
                Err(Fault::said(
                    "wrong-type",
                    format!("`{word}` needs a value"),
                    format!("write it below: `{{ {word}: … }}`"),
                )
                .at(&self.place.node.span))
            }
        }
    }

    fn tuple_variant<V: Visitor<'t>>(self, _: usize, visitor: V) -> Result<V::Value, Fault> {
        self.place.deserialize_seq(visitor)
    }

    fn struct_variant<V: Visitor<'t>>(self, keys: &'static [&'static str], visitor: V) -> Result<V::Value, Fault> {
        self.place.deserialize_struct("", keys, visitor)
    }
}

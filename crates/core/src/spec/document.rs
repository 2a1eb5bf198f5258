//! Text → a tree of values, each with its place, and what is wrong with the YAML itself.

use std::collections::HashMap;
use std::ops::Range;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, ScanError, Tag};

use super::diagnostic::{Diagnostic, Path, Segment, Severity};
use super::secrecy;
use super::units::quoted;

/// Deeper than any sensible file; keeps recursion over the tree far from the end of the stack.
const DEEPEST: usize = 48;
/// How many nodes aliases may add in all: a page of them can stand for billions.
const COPIES: usize = 100_000;
/// The most bytes that a file may have. 10,000 clusters are about 2.5 MB; 8 MiB of them (34,560) take 0.8 s and 300 MiB to
/// check, 8 MiB of one-letter list items, the worst that was found, 1.5 s and 900 MiB.
pub const LARGEST: usize = 8 << 20;

/// A range of bytes in the text.
pub(super) type Span = Range<usize>;

/// A value and its place.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) span: Span,
    /// Set when the value was reported as wrong: the decoder skips it.
    pub(super) pruned: bool,
    pub(super) kind: Kind,
}

#[derive(Debug, Clone)]
pub(super) enum Kind {
    Scalar { text: String, plain: bool },
    List(Vec<Node>),
    Map(Mapping),
}

#[derive(Debug, Clone, Default)]
pub(super) struct Mapping {
    pub(super) entries: Vec<Entry>,
    /// Keys that were reported as wrong, and those that they probably stood for: not to be missed again.
    pub(super) lost: Vec<String>,
}

#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) key_span: Span,
    pub(super) value: Node,
}

impl Node {
    /// Nothing was written: an empty value, `~` or `null`.
    pub(super) fn is_null(&self) -> bool {
        matches!(&self.kind, Kind::Scalar { text, plain: true } if matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL"))
    }

    fn children(&self) -> usize {
        match &self.kind {
            Kind::Scalar { .. } => 0,
            Kind::List(items) => items.len(),
            Kind::Map(map) => map.entries.len(),
        }
    }

    /// How many nodes there are below and including this one, counted up to a limit, and how deep they go.
    fn measure(&self, limit: usize) -> Option<(usize, usize)> {
        if self.children() > limit {
            return None;
        }
        let mut count = 1;
        let mut depth = 0;
        let mut add = |node: &Node| {
            let (below, deep) = node.measure(limit.saturating_sub(count))?;
            count += below;
            depth = depth.max(deep);
            (count <= limit).then_some(())
        };
        match &self.kind {
            Kind::Scalar { .. } => {}
            Kind::List(items) => items.iter().try_for_each(&mut add)?,
            Kind::Map(map) => map.entries.iter().try_for_each(|entry| add(&entry.value))?,
        }
        Some((count, depth + 1))
    }
}

/// Where a path leads in a text.
impl Node {
    /// The place of what the path names, or of its nearest ancestor that exists; and whether it is the former.
    pub(super) fn locate(&self, path: &Path, on_key: bool) -> (Span, bool) {
        let mut node = self;
        let mut place = self.head();
        for segment in path.segments() {
            match (segment, &node.kind) {
                (Segment::Key(key), Kind::Map(map)) => {
                    let Some(entry) = map.entries.iter().find(|entry| entry.key == *key) else { return (place, false) };
                    place = if on_key { entry.key_span.clone() } else { entry.value_place() };
                    node = &entry.value;
                }
                (Segment::Index(index), Kind::List(items)) => {
                    let Some(item) = items.get(*index) else { return (place, false) };
                    place = item.head();
                    node = item;
                }
                _ => return (place, false),
            }
        }
        (place, true)
    }

    /// Where to point at for the whole of a value: a scalar itself, or the first key of what is below.
    pub(super) fn head(&self) -> Span {
        match &self.kind {
            Kind::Scalar { .. } => self.span.clone(),
            Kind::List(items) => items.first().map_or_else(|| self.span.clone(), Node::head),
            Kind::Map(map) => map.entries.first().map_or_else(|| self.span.clone(), |entry| entry.key_span.clone()),
        }
    }
}

impl Entry {
    /// Where to point at for the value: itself when it stands on the key's line, else the key.
    pub(super) fn value_place(&self) -> Span {
        match &self.value.kind {
            Kind::Scalar { .. } if !self.value.span.is_empty() => self.value.span.clone(),
            _ => self.key_span.clone(),
        }
    }
}

/// Saphyr counts lines and characters; we want bytes.
struct Places<'t> {
    text: &'t str,
    /// Where each line starts, as YAML sees lines: CR, LF or CRLF end one.
    lines: Vec<usize>,
    ascii: bool,
    /// The last place asked for: one long line would otherwise be walked from its start each time.
    last: (usize, usize, usize),
}

impl<'t> Places<'t> {
    fn new(text: &'t str) -> Self {
        let bytes = text.as_bytes();
        // The parser does not count a byte order mark.
        let mut lines = vec![if text.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 }];
        for (at, byte) in bytes.iter().enumerate() {
            if *byte == b'\n' || *byte == b'\r' && bytes.get(at + 1) != Some(&b'\n') {
                lines.push(at + 1);
            }
        }
        let last = (0, 0, lines[0]);
        Self { text, lines, ascii: text.is_ascii(), last }
    }

    fn byte(&mut self, marker: Marker) -> usize {
        let line = marker.line().saturating_sub(1);
        let Some(start) = self.lines.get(line).copied() else { return self.text.len() };
        if self.ascii {
            return (start + marker.col()).min(self.text.len());
        }
        let (from, skip) = match self.last {
            (last_line, col, byte) if last_line == line && col <= marker.col() => (byte, marker.col() - col),
            _ => (start, marker.col()),
        };
        let rest = self.text.get(from..).unwrap_or_default();
        let byte = rest.char_indices().nth(skip).map_or(self.text.len(), |(at, _)| from + at);
        self.last = (line, marker.col(), byte);
        byte
    }

    fn span(&mut self, span: saphyr_parser::Span) -> Span {
        let start = self.byte(span.start);
        start..self.byte(span.end).max(start)
    }
}

/// A list or mapping that is still open.
struct Open {
    anchor: usize,
    start: usize,
    collection: Collection,
    hush: bool,
}

enum Collection {
    List(Vec<Node>),
    Map(Vec<Entry>, Option<(String, Span)>),
}

struct Loader<'t> {
    places: Places<'t>,
    open: Vec<Open>,
    root: Option<Node>,
    /// What each anchor stands for; `None` when it is too much to be copied.
    anchors: HashMap<usize, Option<Node>>,
    copies: usize,
    diagnostics: Vec<Diagnostic>,
}

/// Stops the reading: what follows cannot be trusted.
struct Stop(Box<Diagnostic>);

impl Stop {
    fn at(diagnostic: Diagnostic) -> Self {
        Self(Box::new(diagnostic))
    }
}

/// Reads the text. There is no tree when the YAML itself is broken.
pub(super) fn load(text: &str) -> (Option<Node>, Vec<Diagnostic>) {
    if text.len() > LARGEST {
        let message = format!("the file is larger than {} MiB", LARGEST >> 20);
        let diagnostic =
            Diagnostic::error("file-too-large", Path::root(), 0..0, message).help("split the fleet into several files");
        return (None, vec![diagnostic]);
    }
    let mut loader = Loader {
        places: Places::new(text),
        open: Vec::new(),
        root: None,
        anchors: HashMap::new(),
        copies: 0,
        diagnostics: Vec::new(),
    };
    match loader.run(text) {
        Ok(()) => (loader.root, loader.diagnostics),
        Err(Stop(diagnostic)) => {
            loader.diagnostics.push(*diagnostic);
            (None, loader.diagnostics)
        }
    }
}

impl Loader<'_> {
    fn run(&mut self, text: &str) -> Result<(), Stop> {
        let mut parser = Parser::new_from_str(text);
        let mut documents = 0;
        while let Some(event) = parser.next_event() {
            let (event, span) = event.map_err(|error| self.syntax(text, &error))?;
            match event {
                Event::DocumentStart(_) => {
                    documents += 1;
                    if documents > 1 {
                        let at = self.places.span(span);
                        return Err(Stop::at(
                            Diagnostic::error("yaml-documents", Path::root(), at, "a second document starts here")
                                .why("raftsman reads one document a file")
                                .help("remove the `---`, or move the rest to a file of its own"),
                        ));
                    }
                }
                Event::Scalar(value, style, anchor, tag) => {
                    let span = self.scalar_span(text, span);
                    let forced = self.tag(tag.as_deref(), &span)?;
                    let plain = matches!(style, ScalarStyle::Plain) && !forced;
                    let node = Node { span, pruned: false, kind: Kind::Scalar { text: value.into_owned(), plain } };
                    self.place(node, anchor)?;
                }
                Event::SequenceStart(anchor, tag) => {
                    self.start(anchor, tag.as_deref(), span, Collection::List(Vec::new()))?
                }
                Event::MappingStart(anchor, tag) => {
                    self.start(anchor, tag.as_deref(), span, Collection::Map(Vec::new(), None))?
                }
                Event::SequenceEnd | Event::MappingEnd => {
                    let end = self.places.byte(span.end);
                    if let Some(open) = self.open.pop() {
                        let span = open.start..end.max(open.start);
                        let kind = match open.collection {
                            Collection::List(items) => Kind::List(items),
                            Collection::Map(entries, _) => Kind::Map(self.mark_duplicates(entries, open.hush)),
                        };
                        self.place(Node { span, pruned: false, kind }, open.anchor)?;
                    }
                }
                Event::Alias(anchor) => {
                    let at = self.places.span(span);
                    let node = self.resolve(anchor, at)?;
                    self.place(node, 0)?;
                }
                Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => {}
            }
        }
        Ok(())
    }

    /// The parser's spans may take in white space and line breaks behind a scalar: leave them out.
    fn scalar_span(&mut self, text: &str, span: saphyr_parser::Span) -> Span {
        let span = self.places.span(span);
        let kept = text.get(span.clone()).map_or(0, |text| text.trim_end().len());
        span.start..span.start + kept
    }

    /// Whether the tag makes a string of the scalar.
    fn tag(&mut self, tag: Option<&Tag>, span: &Span) -> Result<bool, Stop> {
        match tag {
            None => Ok(false),
            Some(tag) if tag.is_yaml_core_schema() => Ok(tag.suffix == "str"),
            // The non-specific tag, a lone `!`, means string too.
            Some(tag) if tag.handle.is_empty() && tag.suffix == "!" => Ok(true),
            Some(_) => {
                self.diagnostics.push(
                    Diagnostic::error("yaml-tag", Path::root(), span.clone(), "tags such as `!name` mean nothing here")
                        .help("remove the tag"),
                );
                Ok(true)
            }
        }
    }

    fn start(
        &mut self,
        anchor: usize,
        tag: Option<&Tag>,
        span: saphyr_parser::Span,
        collection: Collection,
    ) -> Result<(), Stop> {
        let span = self.places.span(span);
        self.tag(tag, &span)?;
        if self.open.len() >= DEEPEST {
            return Err(Stop::at(too_deep(span)));
        }
        let hush = self.open.last().is_some_and(|open| {
            open.hush || matches!(&open.collection, Collection::Map(_, Some((key, _))) if secrecy::is_secret_key(key))
        });
        self.open.push(Open { anchor, start: span.start, collection, hush });
        Ok(())
    }

    fn resolve(&mut self, anchor: usize, at: Span) -> Result<Node, Stop> {
        let stop = |message: &str, help: &str| {
            Stop::at(Diagnostic::error("yaml-alias", Path::root(), at.clone(), message).help(help))
        };
        let too_much = || {
            stop(
                &format!("aliases stand for more than {COPIES} values in all"),
                "write the values out, or use fewer aliases of aliases",
            )
        };
        match self.anchors.get(&anchor) {
            None => Err(stop("this alias stands for something it is part of", "refer to an anchor that is complete")),
            Some(None) => Err(too_much()),
            Some(Some(node)) => {
                let (count, depth) = node.measure(COPIES - self.copies).ok_or_else(too_much)?;
                if self.open.len() + depth > DEEPEST {
                    return Err(Stop::at(too_deep(at)));
                }
                self.copies += count;
                Ok(node.clone())
            }
        }
    }

    /// Puts a complete value where it belongs: into the innermost open collection.
    fn place(&mut self, node: Node, anchor: usize) -> Result<(), Stop> {
        if anchor != 0 {
            let small = node.measure(COPIES - self.copies);
            self.copies += small.map_or(0, |(count, _)| count);
            self.anchors.insert(anchor, small.map(|_| node.clone()));
        }
        match self.open.last_mut().map(|open| &mut open.collection) {
            None => self.root = Some(node),
            Some(Collection::List(items)) => items.push(node),
            Some(Collection::Map(entries, pending)) => match pending.take() {
                Some((key, key_span)) => entries.push(Entry { key, key_span, value: node }),
                None => match node.kind {
                    Kind::Scalar { text, .. } => *pending = Some((text, node.span)),
                    Kind::List(_) | Kind::Map(_) => {
                        let help = "quote the value if it starts with `{` or `[`; a template such as `{{ name }}` must be filled in before raftsman reads the file";
                        let diagnostic = Diagnostic::error(
                            "yaml-key",
                            Path::root(),
                            node.head(),
                            "a key must be plain text, not a list or a mapping",
                        );
                        return Err(Stop::at(diagnostic.help(help)));
                    }
                },
            },
        }
        Ok(())
    }

    /// The way to where the next value goes; not into what may be secret.
    fn open_path(&self) -> Path {
        let mut path = Path::root();
        for open in self.open.iter().take_while(|open| !open.hush) {
            path = match &open.collection {
                Collection::List(items) => path.index(items.len()),
                Collection::Map(_, Some((key, _))) => path.key(key),
                Collection::Map(_, None) => path,
            };
        }
        path
    }

    fn mark_duplicates(&mut self, entries: Vec<Entry>, hush: bool) -> Mapping {
        let mut seen: HashMap<&str, usize> = HashMap::with_capacity(entries.len());
        let mut twice = Vec::new();
        for (index, entry) in entries.iter().enumerate() {
            let first = *seen.entry(entry.key.as_str()).or_insert(index);
            if first != index {
                twice.push(index);
                let above = self.open_path();
                let message = if hush {
                    "this key is given twice".to_owned()
                } else {
                    format!("the key {} is given twice", quoted(&entry.key))
                };
                let path = if hush { above } else { above.key(&entry.key) };
                self.diagnostics.push(
                    Diagnostic::error("duplicate-key", path, entry.key_span.clone(), message)
                        .also(entries[first].key_span.clone(), "first given here")
                        .why("only one of them can take effect, and YAML does not say which")
                        .help("keep one of them"),
                );
            }
        }
        drop(seen);
        // Kept, but passed over: their values may hold secrets, which have to be found.
        let mut entries = entries;
        for index in twice {
            entries[index].value.pruned = true;
        }
        Mapping { entries, lost: Vec::new() }
    }

    fn syntax(&mut self, text: &str, error: &ScanError) -> Stop {
        let at = self.places.byte(*error.marker());
        let (message, help) = explain(error.info());
        let mut at = at..at;
        // At the end of a line there is nothing to point at: point at the line's last word instead.
        if text
            .get(at.start..)
            .is_none_or(|rest| rest.trim_start_matches([' ', '\r']).starts_with('\n') || rest.trim().is_empty())
        {
            let before = text.get(..at.start).unwrap_or_default().trim_end();
            let word = before.rfind(char::is_whitespace).map_or(0, |at| at + 1);
            at = word..before.len();
        }
        if message.contains("a tab") {
            // The parser stands behind the tab.
            let line = text.get(..at.start).and_then(|before| before.rfind('\n')).map_or(0, |end| end + 1);
            let tab = text.get(line..).and_then(|line| line.lines().next()).and_then(|line| line.find('\t'));
            at = tab.map_or(at, |tab| line + tab..line + tab + 1);
        }
        let mut diagnostic = Diagnostic::new(Severity::Error, "yaml-syntax", Path::root(), at, message);
        diagnostic.help = help.map(str::to_owned);
        Stop::at(diagnostic)
    }
}

fn too_deep(at: Span) -> Diagnostic {
    Diagnostic::error("yaml-depth", Path::root(), at, format!("the file nests deeper than {DEEPEST} levels"))
        .help("nothing in this file goes deeper than 8: check the indentation")
}

/// The parser's message → what it means to the author of the file.
fn explain(info: &str) -> (String, Option<&'static str>) {
    let (message, help) = match info {
        "mapping values are not allowed in this context" | "illegal placement of ':' indicator" => (
            "a `:` that starts a value cannot stand here",
            "check the indentation of this line; quote a text with `: ` in it",
        ),
        "tabs disallowed within this context (block indentation)"
        | "tabs disallowed in this context"
        | "tab cannot be used as indentation"
        | "a block scalar content cannot start with a tab"
        | "while scanning a plain scalar, found a tab" => {
            ("a tab in the indentation", "YAML allows spaces only: use two a level")
        }
        "while parsing node, found unknown anchor" => (
            "this alias refers to an anchor that is not above it",
            "define it first: `&name`; quote a text that starts with `*`",
        ),
        "simple key expected" | "simple key expect ':'" => {
            ("a key without `:`", "every line of a mapping is `key: value`")
        }
        "while parsing a block mapping, did not find expected key" => (
            "a line that is neither a key nor the end of this mapping",
            "check the indentation: keys of one mapping stand in one column",
        ),
        "while parsing a block collection, did not find expected '-' indicator" => (
            "a line that is not an item of this list",
            "check the indentation: items of one list stand in one column, each with `- `",
        ),
        "block sequence entries are not allowed in this context" => {
            ("a list cannot start here", "put `- ` on a line of its own, below the key and indented")
        }
        "while parsing a flow mapping, did not find expected ',' or '}'" => {
            ("a `{` that is not closed, or a `,` is missing", "close it with `}`")
        }
        "while parsing a flow sequence, expected ',' or ']'" => {
            ("a `[` that is not closed, or a `,` is missing", "close it with `]`")
        }
        "while scanning a quoted scalar, found unexpected end of stream" => {
            ("a quote that is not closed", "close it with the same quote")
        }
        "while parsing a quoted scalar, found unknown escape character" => {
            ("an unknown escape after `\\`", "write `\\\\` for a backslash, or use single quotes")
        }
        "invalid trailing content after double-quoted scalar" => {
            ("something follows the closing quote", "quote the whole value, or remove the rest")
        }
        "misplaced bracket" => ("a bracket that was not opened", "remove it, or quote the value"),
        "invalid indentation"
        | "wrongly indented line in block scalar"
        | "invalid indentation in flow construct"
        | "invalid indentation in quoted scalar" => {
            ("wrong indentation", "indent with two spaces a level, the same for all keys of one mapping")
        }
        "recursion limit exceeded" => ("the file nests too deep", "check the brackets"),
        "a byte order mark must not appear inside a document" => {
            ("a byte order mark inside the file", "remove it: it is invisible, and stands where two files were joined")
        }
        other if other.starts_with("unexpected character") => (
            "a character that cannot start a value",
            "quote the value: `@`, `` ` `` and `%` mean something else to YAML",
        ),
        other => return (format!("this is not YAML: {other}"), None),
    };
    (message.to_owned(), Some(help))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scalars(node: &Node, found: &mut Vec<(String, Span)>) {
        match &node.kind {
            Kind::Scalar { text, .. } => found.push((text.clone(), node.span.clone())),
            Kind::List(items) => items.iter().for_each(|item| scalars(item, found)),
            Kind::Map(map) => map.entries.iter().for_each(|entry| {
                found.push((entry.key.clone(), entry.key_span.clone()));
                scalars(&entry.value, found);
            }),
        }
    }

    #[test]
    fn every_span_holds_its_text() {
        let texts = [
            "a: b\nc:\n  - d\n  - e: 'f'\n",
            "# größer — 日本\nschlüssel: wert # für später\nñ: [é, \"ü\", {ö: 🦀}] # ∞\nz: 1\n",
            "a: b\r\n# é\r\nc: { d: e, f: \"g\" }\r\n",
            "a: b\rc: d\r",
            "\u{feff}a: b\nc: d\n",
            "a: &x [é, b]\nc: *x\n",
            "a: é   \nb: c\n\n\n",
        ];
        for text in texts {
            let (root, diagnostics) = load(text);
            assert!(diagnostics.is_empty(), "{text:?}: {diagnostics:?}");
            let mut found = Vec::new();
            scalars(&root.unwrap(), &mut found);
            assert!(found.len() >= 4, "{text:?}");
            for (value, span) in found {
                assert_eq!(text[span].trim_matches(['"', '\'']), value, "in {text:?}");
            }
        }
    }
}

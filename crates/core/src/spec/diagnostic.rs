//! What is wrong with a file, and where → messages for users and for programs.

use std::fmt;
use std::ops::Range;

use annotate_snippets::renderer::DecorStyle;
use annotate_snippets::{Annotation, AnnotationKind, Group, Level, Origin, Renderer, Snippet};
use serde::{Serialize, Serializer};

use super::document::Span;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The file cannot be used.
    Error,
    /// The file can be used, but it is unwise.
    Warning,
}

/// One step of a [`Path`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Segment {
    /// Into a mapping.
    Key(String),
    /// Into a list, counted from 0.
    Index(usize),
}

/// The way from the top of the file to a value, such as `etcd.main.members[2].address`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Path(Vec<Segment>);

impl Path {
    /// The whole file.
    pub fn root() -> Self {
        Self::default()
    }

    /// The path that these keys make.
    pub fn of(keys: &[&str]) -> Self {
        Self(keys.iter().map(|key| Segment::Key((*key).to_owned())).collect())
    }

    /// One key further.
    #[must_use]
    pub fn key(mut self, key: &str) -> Self {
        self.0.push(Segment::Key(key.to_owned()));
        self
    }

    /// One item further.
    #[must_use]
    pub fn index(mut self, index: usize) -> Self {
        self.0.push(Segment::Index(index));
        self
    }

    /// One step back.
    #[must_use]
    pub fn parent(&self) -> Self {
        Self(self.0[..self.0.len().saturating_sub(1)].to_vec())
    }

    /// The steps.
    pub fn segments(&self) -> &[Segment] {
        &self.0
    }

    /// Whether one of the two contains the other.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).all(|(a, b)| a == b)
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, segment) in self.0.iter().enumerate() {
            match segment {
                Segment::Index(index) => write!(f, "[{index}]")?,
                Segment::Key(key) => {
                    let dot = if at == 0 { "" } else { "." };
                    let shown: String = key.chars().take(64).map(|c| if c.is_control() { '?' } else { c }).collect();
                    write!(f, "{dot}{shown}")?;
                }
            }
        }
        Ok(())
    }
}

impl Serialize for Path {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Another place that a diagnostic speaks of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Related {
    pub(super) span: Span,
    pub(super) label: &'static str,
}

/// One thing that is wrong, or questionable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Diagnostic {
    /// How bad it is.
    pub severity: Severity,
    /// What it is, in a word that does not change from version to version.
    pub code: &'static str,
    /// Where it is, by keys.
    pub path: Path,
    /// Where it is, in bytes of the text.
    #[serde(skip)]
    pub span: Range<usize>,
    /// The line, from 1.
    pub line: usize,
    /// The column, in characters from 1.
    pub column: usize,
    /// What is wrong.
    pub message: String,
    /// Why it is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub help: Option<String>,
    #[serde(skip)]
    pub(super) also: Vec<Related>,
}

impl Diagnostic {
    pub(super) fn new(
        severity: Severity,
        code: &'static str,
        path: Path,
        span: Span,
        message: impl Into<String>,
    ) -> Self {
        let message = message.into();
        Self { severity, code, path, span, line: 1, column: 1, message, why: None, help: None, also: Vec::new() }
    }

    pub(super) fn error(code: &'static str, path: Path, span: Span, message: impl Into<String>) -> Self {
        Self::new(Severity::Error, code, path, span, message)
    }

    #[must_use]
    pub(super) fn why(mut self, why: impl Into<String>) -> Self {
        self.why = Some(why.into());
        self
    }

    #[must_use]
    pub(super) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    #[must_use]
    pub(super) fn also(mut self, span: Span, label: &'static str) -> Self {
        self.also.push(Related { span, label });
        self
    }

    /// Whether the file cannot be used.
    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }
}

/// A text's lines, as editors count them.
pub(super) struct Lines<'t> {
    text: &'t str,
    starts: Vec<usize>,
}

impl<'t> Lines<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        let ends = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at + 1);
        Self { text, starts: std::iter::once(0).chain(ends).collect() }
    }

    /// The index of the line that holds this byte.
    fn index(&self, byte: usize) -> usize {
        self.starts.partition_point(|start| *start <= byte).saturating_sub(1)
    }

    /// The bytes of a line, without its end.
    fn range(&self, index: usize) -> Range<usize> {
        let start = self.starts.get(index).copied().unwrap_or(self.text.len());
        let end = self.starts.get(index + 1).copied().unwrap_or(self.text.len());
        let line = self.text.get(start..end).unwrap_or_default();
        start..start + line.trim_end_matches(['\n', '\r']).len()
    }

    fn floor(&self, byte: usize) -> usize {
        let mut byte = byte.min(self.text.len());
        while !self.text.is_char_boundary(byte) {
            byte -= 1;
        }
        byte
    }

    /// Line and column of a byte, both from 1.
    pub(super) fn position(&self, byte: usize) -> (usize, usize) {
        let byte = self.floor(byte);
        let index = self.index(byte);
        let start = self.starts.get(index).copied().unwrap_or(0);
        (index + 1, self.text.get(start..byte).map_or(0, |before| before.chars().count()) + 1)
    }
}

/// One line as it may be shown: secrets out, and what is pointed at in the new bytes.
struct Window {
    line: usize,
    source: String,
    span: Range<usize>,
}

impl Window {
    /// Whether the other window's line shows this one's place too.
    fn shows(&self, other: &Self) -> bool {
        self.line == other.line
            && self.span.end <= other.source.len()
            && other.source.is_char_boundary(self.span.start)
            && other.source.is_char_boundary(self.span.end)
    }
}

fn snippet<'a>(window: &Window, file: &str) -> Snippet<'a, Annotation<'a>> {
    Snippet::source(window.source.clone()).line_start(window.line).path(file.to_owned())
}

/// Beyond this column a snippet is not readable any more.
const WIDEST: usize = 2000;

fn window(lines: &Lines<'_>, masks: &[Span], span: &Span) -> Result<Window, (usize, usize)> {
    const MASK: &str = "********";
    let start = lines.floor(span.start);
    let index = lines.index(start);
    let range = lines.range(index);
    let (line, column) = lines.position(start);
    if start.saturating_sub(range.start) > WIDEST {
        return Err((line, column));
    }
    let start = start.clamp(range.start, range.end);
    let end = lines.floor(span.end).clamp(start, range.end);
    let last = lines.floor(range.end.min(end.max(start) + 160).min(start + WIDEST)).max(start);
    let end = end.min(last);
    // Copy piece by piece; a mask in between moves what comes after it.
    let mut source = String::new();
    let mut moved = (None, None);
    let mut at = range.start;
    let first = masks.partition_point(|mask| mask.end <= range.start);
    let hidden = masks[first..].iter().take_while(|mask| mask.start < last);
    let pieces = hidden.map(Some).chain(std::iter::once(None));
    for mask in pieces {
        let until = mask.map_or(last, |mask| lines.floor(mask.start).clamp(at, last));
        for (offset, c) in lines.text.get(at..until).unwrap_or_default().char_indices() {
            if at + offset >= start && moved.0.is_none() {
                moved.0 = Some(source.len());
            }
            if at + offset >= end && moved.1.is_none() {
                moved.1 = Some(source.len());
            }
            source.push(if c == '\r' || c == '\0' { ' ' } else { c });
        }
        at = until;
        if let Some(mask) = mask {
            let until = lines.floor(mask.end).clamp(at, last);
            if start < until && moved.0.is_none() {
                moved.0 = Some(source.len());
            }
            source.push_str(MASK);
            if end <= until && moved.1.is_none() {
                moved.1 = Some(source.len());
            }
            at = until;
        }
    }
    let from = moved.0.unwrap_or(source.len());
    let to = moved.1.unwrap_or(source.len()).max(from);
    Ok(Window { line, source, span: from..to })
}

/// Writes all diagnostics, each with the line it speaks of.
pub(super) fn render(diagnostics: &[Diagnostic], masks: &[Span], file: &str, text: &str, colour: bool) -> String {
    let renderer = if colour { Renderer::styled() } else { Renderer::plain() };
    let renderer = renderer.decor_style(DecorStyle::Ascii).term_width(120);
    let lines = Lines::new(text);
    let mut out = String::new();
    for diagnostic in diagnostics {
        let level = match diagnostic.severity {
            Severity::Error => Level::ERROR,
            Severity::Warning => Level::WARNING,
        };
        let mut group: Group<'_> = Group::with_title(level.primary_title(&diagnostic.message).id(diagnostic.code));
        let primary = window(&lines, masks, &diagnostic.span);
        let also: Vec<_> = diagnostic.also.iter().map(|also| (window(&lines, masks, &also.span), also.label)).collect();
        group = match primary {
            Ok(primary) if !text.is_empty() => {
                let near = also.iter().filter_map(|(window, label)| match window {
                    Ok(window) if window.shows(&primary) => {
                        Some(AnnotationKind::Context.span(window.span.clone()).label(*label))
                    }
                    _ => None,
                });
                let snippet = snippet(&primary, file).annotation(AnnotationKind::Primary.span(primary.span.clone()));
                let snippet = snippet.annotations(near);
                also.iter().fold(group.element(snippet), |group, (window, label)| match window {
                    Ok(window) if window.shows(&primary) => group,
                    Ok(window) => {
                        let there = AnnotationKind::Context.span(window.span.clone()).label(*label);
                        group.element(self::snippet(window, file).annotation(there))
                    }
                    Err((line, column)) => {
                        group.element(Origin::path(file.to_owned()).line(*line).char_column(*column))
                    }
                })
            }
            Ok(window) => group.element(Origin::path(file.to_owned()).line(window.line).char_column(1)),
            Err((line, column)) => group.element(Origin::path(file.to_owned()).line(line).char_column(column)),
        };
        if let Some(why) = &diagnostic.why {
            group = group.element(Level::NOTE.message(why));
        }
        if let Some(help) = &diagnostic.help {
            group = group.element(Level::HELP.message(help));
        }
        out.push_str(&renderer.render(&[group]));
        out.push_str("\n\n");
    }
    out
}

//! Rows of cells → aligned columns.

/// A table without lines.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
    indent: usize,
}

impl Table {
    /// A table with this indentation.
    pub(crate) fn indented(indent: usize) -> Self {
        Self { rows: Vec::new(), indent }
    }

    /// Adds a row.
    pub(crate) fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// The text.
    pub(crate) fn render(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns)
            .map(|c| self.rows.iter().filter_map(|r| r.get(c)).map(|cell| width(cell)).max().unwrap_or(0))
            .collect();
        let mut out = String::new();
        for row in &self.rows {
            let mut line = " ".repeat(self.indent);
            for (cell, width_of) in row.iter().zip(&widths) {
                line.push_str(cell);
                line.push_str(&" ".repeat(width_of.saturating_sub(width(cell)) + 2));
            }
            out.push_str(line.trim_end());
            out.push('\n');
        }
        out
    }
}

/// The width of a cell on the screen: colours have none.
fn width(text: &str) -> usize {
    let mut count = 0;
    let mut escape = false;
    for c in text.chars() {
        match (escape, c) {
            (false, '\u{1b}') => escape = true,
            (true, 'm') => escape = false,
            (true, _) => {}
            (false, _) => count += 1,
        }
    }
    count
}

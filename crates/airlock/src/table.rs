//! Tables for people: a header in capitals, no borders, cut to the terminal, full when piped.
//!
//! ```text
//! NAME        STATUS
//! calm-otter  running
//! ```

use crate::clean::clean_line;

/// Rows under a header.
#[derive(Debug)]
pub(crate) struct Table<const N: usize> {
    header: [&'static str; N],
    rows: Vec<[String; N]>,
}

impl<const N: usize> Table<N> {
    pub(crate) fn new(header: [&'static str; N]) -> Table<N> {
        Table { header, rows: Vec::new() }
    }

    /// Adds a row; its texts are cleaned.
    pub(crate) fn row(&mut self, row: [String; N]) {
        self.rows.push(row.map(|text| clean_line(&text)));
    }

    /// The whole table, each line at most `width` characters long where there is a width.
    pub(crate) fn text(&self, width: Option<usize>) -> String {
        let header = self.header.map(str::to_owned);
        let lines = || std::iter::once(&header).chain(&self.rows);
        let mut widths = [0usize; N];
        for line in lines() {
            for (widest, cell) in widths.iter_mut().zip(line) {
                *widest = (*widest).max(cell.chars().count());
            }
        }
        lines().map(|line| cut(&joined(line, &widths), width) + "\n").collect()
    }
}

fn joined(line: &[String], widths: &[usize]) -> String {
    let cells: Vec<String> = line.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
    cells.join("  ").trim_end().to_owned()
}

fn cut(line: &str, width: Option<usize>) -> String {
    match width {
        Some(width) if line.chars().count() > width => {
            let kept: String = line.chars().take(width.saturating_sub(1)).collect();
            kept + "…"
        }
        _ => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table<3> {
        let mut table = Table::new(["NAME", "STATUS", "COMMAND"]);
        table.row(["web".into(), "running".into(), "./serve --port 80".into()]);
        table.row(["calm-otter".into(), "crashed".into(), "sh -c 'a\nb\x1b[2J'".into()]);
        table
    }

    #[test]
    fn columns_line_up_and_are_full_when_piped() {
        let expected = "\
NAME        STATUS   COMMAND
web         running  ./serve --port 80
calm-otter  crashed  sh -c 'a b'
";
        assert_eq!(table().text(None), expected);
    }

    #[test]
    fn lines_are_cut_to_the_terminal() {
        let expected = "\
NAME        STATUS   COM…
web         running  ./s…
calm-otter  crashed  sh …
";
        assert_eq!(table().text(Some(25)), expected);
    }
}

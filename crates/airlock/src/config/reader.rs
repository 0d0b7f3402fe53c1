//! TOML that a person wrote, read key by key, so that every complaint can point at its place. Pure.

use crate::failure::{Excerpt, Failure};
use airlock_gate::policy::suggestion;
use std::ops::Range;
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

/// The text of a file, and what to call it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Source<'t> {
    pub(crate) name: &'t str,
    pub(crate) text: &'t str,
}

/// One value of a table, and where it stands.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Value<'t, 'v> {
    source: Source<'t>,
    key: &'v str,
    span: (usize, usize),
    value: &'v DeValue<'t>,
}

impl<'t> Source<'t> {
    /// The top table.
    pub(crate) fn parse(self) -> Result<DeTable<'t>, Failure> {
        DeTable::parse(self.text).map(Spanned::into_inner).map_err(|err| {
            self.wrong(err.span().map_or(0, |span| span.start), err.message().trim().replace('\n', ", "))
        })
    }

    /// Every key of `table` with its value, in no order.
    pub(crate) fn entries<'v>(self, table: &'v DeTable<'t>) -> impl Iterator<Item = Value<'t, 'v>> {
        table.iter().map(move |(key, value)| Value {
            source: self,
            key: key.get_ref().as_ref(),
            span: (key.span().start, value.span().start),
            value: value.get_ref(),
        })
    }

    /// The line that holds a byte of the text, and the byte's place in it.
    pub(crate) fn place(self, offset: usize) -> Excerpt {
        let before = self.text.get(..offset).unwrap_or(self.text);
        let line = before.matches('\n').count() + 1;
        let start = before.rfind('\n').map_or(0, |at| at + 1);
        let column = before.get(start..).unwrap_or_default().chars().count() + 1;
        let text = self.text.get(start..).unwrap_or_default().lines().next().unwrap_or_default().to_owned();
        Excerpt { line, column, text }
    }

    /// A complaint about what stands at a byte of the text.
    pub(crate) fn wrong(self, offset: usize, what: impl AsRef<str>) -> Failure {
        let place = self.place(offset);
        let what = format!("{}:{}:{}: {}", self.name, place.line, place.column, what.as_ref());
        Failure::new(what).code(2).excerpt(place)
    }
}

impl<'t, 'v> Value<'t, 'v> {
    pub(crate) fn key(&self) -> &'v str {
        self.key
    }

    /// A complaint about the value.
    pub(crate) fn wrong(&self, what: impl AsRef<str>) -> Failure {
        self.source.wrong(self.span.1, what)
    }

    /// A complaint about the key: it is none of `known`.
    pub(crate) fn unknown(&self, known: &[&str]) -> Failure {
        let failure = self.source.wrong(self.span.0, format!("there is no setting {:?} here", self.key));
        match suggestion(self.key, known.iter().copied()) {
            Some(close) => failure.fix(format!("did you mean {close}?")),
            None => failure.fix(format!("known here: {}", known.join(", "))),
        }
    }

    pub(crate) fn table(&self) -> Result<&'v DeTable<'t>, Failure> {
        self.value.as_table().ok_or_else(|| self.wrong(format!("{} is a table: [{0}]", self.key)))
    }

    pub(crate) fn text(&self) -> Result<&'v str, Failure> {
        self.value.as_str().ok_or_else(|| self.wrong(format!("{} is a text: write \"…\"", self.key)))
    }

    pub(crate) fn flag(&self) -> Result<bool, Failure> {
        self.value.as_bool().ok_or_else(|| self.wrong(format!("{} is true or false", self.key)))
    }

    /// A text, or a number written without quotes, as a flag's parser takes it.
    pub(crate) fn parsed<T>(&self, parse: impl Fn(&str) -> Result<T, String>) -> Result<T, Failure> {
        let text = match self.value {
            DeValue::String(text) => text.to_string(),
            DeValue::Integer(number) => number.to_string(),
            DeValue::Float(number) => number.as_str().to_owned(),
            _ => return Err(self.wrong(format!("{} is a text or a number", self.key))),
        };
        // "X is no size: write 4G" says what and what to do.
        parse(&text).map_err(|why| match why.rsplit_once(": write ") {
            Some((what, fix)) => self.wrong(what).fix(format!("write {fix}")),
            None => self.wrong(why),
        })
    }

    /// One value, or several in a list.
    pub(crate) fn each<T>(&self, parse: impl Fn(&str) -> Result<T, String>) -> Result<Vec<T>, Failure> {
        let Some(list) = self.value.as_array() else { return Ok(vec![self.parsed(&parse)?]) };
        list.iter().map(|item| self.item(item).parsed(&parse)).collect()
    }

    /// The tables of an array of tables: `[[name]]`.
    pub(crate) fn tables(&self) -> Result<Vec<(Value<'t, 'v>, &'v DeTable<'t>)>, Failure> {
        let wrong = || self.wrong(format!("{} is a list of tables", self.key));
        let list = self.value.as_array().ok_or_else(wrong)?;
        list.iter().map(|item| Ok((self.item(item), item.get_ref().as_table().ok_or_else(wrong)?))).collect()
    }

    /// The value as JSON has it.
    pub(crate) fn json(&self) -> serde_json::Value {
        json(self.value)
    }

    /// Where each of the values that [`Value::each`] gives stands.
    pub(crate) fn places(&self) -> Vec<usize> {
        match self.value.as_array() {
            Some(list) => list.iter().map(|item| item.span().start).collect(),
            None => vec![self.span.1],
        }
    }

    /// The table of a value that may be one.
    pub(crate) fn as_table(&self) -> Option<&'v DeTable<'t>> {
        self.value.as_table()
    }

    /// The entries of a table below.
    pub(crate) fn entries(&self, table: &'v DeTable<'t>) -> impl Iterator<Item = Value<'t, 'v>> {
        self.source.entries(table)
    }

    fn item(&self, item: &'v Spanned<DeValue<'t>>) -> Value<'t, 'v> {
        let Range { start, .. } = item.span();
        Value { source: self.source, key: self.key, span: (start, start), value: item.get_ref() }
    }
}

fn json(value: &DeValue<'_>) -> serde_json::Value {
    match value {
        DeValue::String(text) => text.as_ref().into(),
        DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => number.into(),
            Err(_) => number.to_string().into(),
        },
        DeValue::Float(number) => {
            number.as_str().parse::<f64>().map_or_else(|_| number.as_str().into(), Into::into)
        }
        DeValue::Boolean(flag) => (*flag).into(),
        DeValue::Datetime(time) => time.to_string().into(),
        DeValue::Array(list) => list.iter().map(|item| json(item.get_ref())).collect(),
        DeValue::Table(table) => {
            table.iter().map(|(key, value)| (key.get_ref().to_string(), json(value.get_ref()))).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_complaint_points_at_its_place() {
        let source = Source { name: "airlock.toml", text: "a = 1\nmemory = [\"lots\"]\n" };
        let table = source.parse().unwrap();
        let memory = source.entries(&table).find(|value| value.key() == "memory").unwrap();
        let failure = memory.each(|_| Err::<(), _>("no size".to_owned())).unwrap_err();
        let expected = "\
error: airlock.toml:2:11: no size
   |
 2 | memory = [\"lots\"]
   |           ^
";
        assert_eq!(failure.to_string(), expected);
        assert_eq!(failure.code, 2);
    }

    #[test]
    fn text_that_is_no_toml_is_shown_with_its_place() {
        let failure = Source { name: "x.toml", text: "a = 1\nb = = 2\n" }.parse().unwrap_err();
        assert!(failure.to_string().starts_with("error: x.toml:2:"), "{failure}");
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[\\PC\n]{0,80}", offset in 0usize..100) {
            let source = Source { name: "x", text: &text };
            let _ = source.wrong(offset, "y").to_string();
            if let Ok(table) = source.parse() {
                for value in source.entries(&table) {
                    let _ = (value.text(), value.flag(), value.each(|text| Ok::<_, String>(text.len())));
                }
            }
        }
    }
}

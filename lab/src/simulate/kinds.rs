//! The kinds of values of settings: what each accepts, and how it is written.

use std::fmt::Display;
use std::str::FromStr;

/// The word that leaves a setting to the program.
const AUTO: &str = "auto";

/// A kind of value.
pub(super) trait Kind<T> {
    /// What it accepts, for people: alternatives.
    fn accepts(&self) -> Vec<String>;

    /// Parses a value; `None` if it is not accepted.
    fn parse(&self, text: &str) -> Option<T>;

    /// Writes a value so that it can be parsed again.
    fn show(&self, value: &T) -> String;
}

/// A number within bounds.
pub(super) struct Number<T> {
    min: T,
    max: T,
    unit: &'static str,
}

/// A number from `min` to `max`.
pub(super) const fn number<T>(min: T, max: T) -> Number<T> {
    Number { min, max, unit: "" }
}

impl<T: Copy> Number<T> {
    /// Names the unit in the text of what is accepted.
    pub(super) const fn of(self, unit: &'static str) -> Number<T> {
        Number { min: self.min, max: self.max, unit }
    }
}

impl<T: FromStr + PartialOrd + Display> Kind<T> for Number<T> {
    fn accepts(&self) -> Vec<String> {
        let Number { min, max, unit } = self;
        vec![format!("{min} to {max}{unit}")]
    }

    fn parse(&self, text: &str) -> Option<T> {
        text.parse().ok().filter(|number| (&self.min..=&self.max).contains(&number))
    }

    fn show(&self, value: &T) -> String {
        value.to_string()
    }
}

/// One of several words.
pub(super) struct Words<T: 'static>(pub(super) &'static [(&'static str, T)]);

impl<T: Copy + PartialEq> Kind<T> for Words<T> {
    fn accepts(&self) -> Vec<String> {
        self.0.iter().map(|(word, _)| (*word).to_owned()).collect()
    }

    fn parse(&self, text: &str) -> Option<T> {
        self.0.iter().find(|(word, _)| *word == text).map(|(_, value)| *value)
    }

    fn show(&self, value: &T) -> String {
        let found = self.0.iter().find(|(_, other)| other == value);
        found.expect("every value of a setting has a word").0.to_owned()
    }
}

/// A value, or `auto`.
pub(super) struct Auto<K>(pub(super) K);

impl<T, K: Kind<T>> Kind<Option<T>> for Auto<K> {
    fn accepts(&self) -> Vec<String> {
        [AUTO.to_owned()].into_iter().chain(self.0.accepts()).collect()
    }

    fn parse(&self, text: &str) -> Option<Option<T>> {
        if text == AUTO { Some(None) } else { self.0.parse(text).map(Some) }
    }

    fn show(&self, value: &Option<T>) -> String {
        value.as_ref().map_or(AUTO.into(), |value| self.0.show(value))
    }
}

/// A type with a text form of its own; the string says what it accepts.
pub(super) struct Text(pub(super) &'static str);

impl<T: FromStr + Display> Kind<T> for Text {
    fn accepts(&self) -> Vec<String> {
        vec![self.0.to_owned()]
    }

    fn parse(&self, text: &str) -> Option<T> {
        text.parse().ok()
    }

    fn show(&self, value: &T) -> String {
        value.to_string()
    }
}

/// Names between commas.
pub(super) struct Names(pub(super) &'static str);

impl Kind<Vec<String>> for Names {
    fn accepts(&self) -> Vec<String> {
        vec![self.0.to_owned()]
    }

    fn parse(&self, text: &str) -> Option<Vec<String>> {
        let names: Vec<String> = text.split(',').map(str::to_owned).collect();
        names.iter().all(|name| !name.is_empty()).then_some(names)
    }

    fn show(&self, value: &Vec<String>) -> String {
        value.join(",")
    }
}

/// A type with another one's texts.
pub(super) struct Mapped<K, I, T> {
    pub(super) kind: K,
    pub(super) to: fn(I) -> T,
    pub(super) from: fn(&T) -> I,
}

impl<K: Kind<I>, I, T> Kind<T> for Mapped<K, I, T> {
    fn accepts(&self) -> Vec<String> {
        self.kind.accepts()
    }

    fn parse(&self, text: &str) -> Option<T> {
        self.kind.parse(text).map(self.to)
    }

    fn show(&self, value: &T) -> String {
        self.kind.show(&(self.from)(value))
    }
}

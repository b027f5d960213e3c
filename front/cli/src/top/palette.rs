//! Colours, or none: everything can be read without them.

use ratatui::style::{Color, Modifier, Style};

/// How parts of the screen are highlighted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Palette {
    Colour,
    /// By bold and reversed text alone.
    Plain,
}

impl Palette {
    /// The palette that the environment asks for: <https://no-color.org>.
    pub(super) fn of_environment() -> Palette {
        match std::env::var_os("NO_COLOR") {
            Some(value) if !value.is_empty() => Palette::Plain,
            _ => Palette::Colour,
        }
    }

    pub(super) fn title(self) -> Style {
        let bold = Style::new().add_modifier(Modifier::BOLD);
        match self {
            Palette::Colour => bold.fg(Color::Cyan),
            Palette::Plain => bold,
        }
    }

    /// Column titles, and the selected process.
    pub(super) fn bar(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    /// Figures of a program that is being slowed down.
    pub(super) fn alert(self) -> Style {
        let bold = Style::new().add_modifier(Modifier::BOLD);
        match self {
            Palette::Colour => bold.fg(Color::Red),
            Palette::Plain => bold,
        }
    }
}

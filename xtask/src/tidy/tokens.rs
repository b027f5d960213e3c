//! Rust tokens in one flat list, for rules that must see into macros as well.

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

/// An identifier, one punctuation character, a bracket, or a literal (as the empty text).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) text: String,
    /// From 1.
    pub(super) line: usize,
}

pub(super) fn flatten(stream: TokenStream) -> Vec<Token> {
    let mut tokens = Vec::new();
    // Depth is the nesting of the source: no deeper than what the compiler itself recurses over.
    append(stream, &mut tokens);
    tokens
}

fn append(stream: TokenStream, tokens: &mut Vec<Token>) {
    for tree in stream {
        let line = tree.span().start().line;
        match tree {
            TokenTree::Group(group) => append_group(&group, tokens),
            TokenTree::Ident(ident) => tokens.push(Token { text: ident.to_string(), line }),
            TokenTree::Punct(punct) => tokens.push(Token { text: punct.to_string(), line }),
            TokenTree::Literal(_) => tokens.push(Token { text: String::new(), line }),
        }
    }
}

fn append_group(group: &Group, tokens: &mut Vec<Token>) {
    let (open, close) = match group.delimiter() {
        Delimiter::Brace => ("{", "}"),
        Delimiter::Bracket => ("[", "]"),
        Delimiter::Parenthesis => ("(", ")"),
        Delimiter::None => return append(group.stream(), tokens),
    };
    tokens.push(Token { text: open.into(), line: group.span_open().start().line });
    append(group.stream(), tokens);
    tokens.push(Token { text: close.into(), line: group.span_close().start().line });
}

/// The text of the token at `index`; empty past the end.
pub(super) fn text(tokens: &[Token], index: usize) -> &str {
    tokens.get(index).map_or("", |token| token.text.as_str())
}

/// The tokens between the bracket at `open` and its partner.
pub(super) fn inside(tokens: &[Token], open: usize) -> &[Token] {
    let mut depth = 0;
    for (index, token) in tokens.iter().enumerate().skip(open) {
        match token.text.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return &tokens[open + 1..index.max(open + 1)];
        }
    }
    &tokens[open + 1..]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(tokens: &[Token]) -> Vec<&str> {
        tokens.iter().map(|token| token.text.as_str()).collect()
    }

    #[test]
    fn brackets_are_tokens_and_literals_are_blank() {
        let tokens = flatten("a!(b,\n [\"unsafe\"]) {}".parse().expect("lexes"));
        assert_eq!(texts(&tokens), ["a", "!", "(", "b", ",", "[", "", "]", ")", "{", "}"]);
        assert_eq!(tokens[5].line, 2);
        assert_eq!(texts(inside(&tokens, 2)), ["b", ",", "[", "", "]"]);
        assert_eq!(texts(inside(&tokens, 9)), [""; 0]);
    }
}

//! `safety-comment`: every `unsafe` says why it is sound, or what its callers owe.
//!
//! The comment stands right above: comments and attributes are free, at most two lines of the same
//! statement lie between, and no blank line. A method of a trait's `impl` is excused: its callers
//! owe what the trait says.

use crate::tidy::finding::Finding;
use crate::tidy::source::{File, Rust};
use crate::tidy::tokens::{Token, text};
use syn::visit::{self, Visit};
use syn::{ImplItem, ItemImpl, Safety};

/// Lines of code between a comment and the `unsafe` it speaks for.
const CODE_BETWEEN_MAX: usize = 2;

/// What an `unsafe` introduces.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Block,
    Impl,
    Function,
    /// Types, attributes, foreign declarations: nothing is promised or owed there.
    Other,
}

pub(in crate::tidy) fn check(file: &File) -> Vec<Finding> {
    let Some(rust) = file.rust().filter(|_| !file.path.starts_with("core/")) else {
        return Vec::new();
    };
    let lines: Vec<&str> = file.lines().map(|(_, line)| line).collect();
    let judge = |(line, found)| judge(&lines, line, found).map(|what| file.finding(line, what));
    uses(rust).into_iter().filter_map(judge).collect()
}

fn uses(rust: &Rust) -> Vec<(usize, Use)> {
    let mut excused = TraitMethods(Vec::new());
    excused.visit_file(&rust.syntax);
    let tokens = &rust.tokens;
    let uses = tokens.iter().enumerate().filter(|(_, token)| token.text == "unsafe");
    let uses = uses.map(|(index, token)| (token.line, classify(&tokens[index + 1..])));
    uses.filter(|(line, found)| *found != Use::Function || !excused.0.contains(line)).collect()
}

/// The lines of `unsafe` methods that answer to a trait.
struct TraitMethods(Vec<usize>);

impl<'ast> Visit<'ast> for TraitMethods {
    fn visit_item_impl(&mut self, item: &'ast ItemImpl) {
        let methods = item.items.iter().filter(|_| item.trait_.is_some());
        self.0.extend(methods.filter_map(|method| match method {
            ImplItem::Fn(method) => match method.sig.safety {
                Safety::Unsafe(token) => Some(token.span.start().line),
                Safety::Safe(_) | Safety::Default => None,
            },
            _ => None,
        }));
        visit::visit_item_impl(self, item);
    }
}

/// By the tokens after `unsafe`.
fn classify(after: &[Token]) -> Use {
    match text(after, 0) {
        "{" => Use::Block,
        "impl" => Use::Impl,
        "trait" => Use::Function,
        "fn" => classify_fn(after, 1),
        // `extern "C" fn`, the name of the ABI being a literal.
        "extern" if text(after, 1) == "fn" => classify_fn(after, 2),
        "extern" if text(after, 2) == "fn" => classify_fn(after, 3),
        _ => Use::Other,
    }
}

/// A function has a name, a function type has not.
fn classify_fn(after: &[Token], name: usize) -> Use {
    match text(after, name) {
        "(" => Use::Other,
        _ => Use::Function,
    }
}

fn judge(lines: &[&str], line: usize, found: Use) -> Option<&'static str> {
    let says = |part: &str| above(lines, line).any(|line| line.contains(part));
    match found {
        Use::Block if !says("SAFETY:") => Some("unsafe block: say why in `// SAFETY:` above it"),
        Use::Impl if !says("SAFETY:") => Some("unsafe impl: say why in `// SAFETY:` above it"),
        Use::Function if !says("# Safety") && !says("SAFETY:") => {
            Some("callers owe something: say what under `/// # Safety`")
        }
        _ => None,
    }
}

/// The line itself, then those above that can hold its comment.
fn above<'a>(lines: &'a [&'a str], line: usize) -> impl Iterator<Item = &'a str> {
    let mut code = 0;
    let own = std::iter::once(lines[line - 1]);
    let before = lines[..line - 1].iter().rev().copied().take_while(move |line| {
        let line = line.trim();
        code += usize::from(!line.starts_with("//") && !line.starts_with("#["));
        !line.is_empty() && code <= CODE_BETWEEN_MAX
    });
    own.chain(before)
}

#[cfg(test)]
mod tests {
    use super::super::testing::assert_file;
    use super::check;

    #[track_caller]
    fn assert_found(text: &str, expected: &[(usize, &str)]) {
        assert_file(check, "platforms/os/src/a.rs", text, expected);
    }

    #[test]
    fn bare_blocks_are_found() {
        let found = [(2, "unsafe block")];
        assert_found("fn a() {\n    unsafe { b() }\n}\n", &found);
        assert_found("m! {\n    unsafe { b() }\n}\n", &found);
        assert_found("fn a() {\n    // SAFETY: b is pure.\n    unsafe { b() }\n}\n", &[]);
        assert_found(
            "fn a() {\n    // SAFETY: pure.\n    let c =\n        unsafe { b() };\n}\n",
            &[],
        );
        assert_found("fn a() {\n    unsafe { b() } // SAFETY: pure.\n}\n", &[]);
        assert_found("// unsafe { b() }\nconst A: &str = \"unsafe { b() }\";\n", &[]);
    }

    #[test]
    fn far_comments_do_not_count() {
        let blank = "fn a() {\n    // SAFETY: pure.\n\n    unsafe { b() }\n}\n";
        assert_found(blank, &[(4, "unsafe block")]);
        let far =
            "fn a() {\n    // SAFETY: pure.\n    c();\n    c();\n    c();\n    unsafe { b() }\n}\n";
        assert_found(far, &[(6, "unsafe block")]);
    }

    #[test]
    fn bare_impls_are_found() {
        assert_found("unsafe impl Send for A {}\n", &[(1, "unsafe impl")]);
        assert_found("// SAFETY: no state.\nunsafe impl Send for A {}\n", &[]);
    }

    #[test]
    fn silent_functions_are_found() {
        let found = [(2, "callers owe")];
        assert_found("/// Does b.\npub unsafe fn a() {}\n", &found);
        assert_found("#[inline]\nunsafe extern \"C\" fn a() {}\n", &found);
        assert_found("/// B.\n///\n/// # Safety\n/// C.\n#[inline]\npub unsafe fn a() {}\n", &[]);
        assert_found("// SAFETY: as malloc.\nunsafe extern \"C\" fn a() {}\n", &[]);
        assert_found("type A = unsafe extern \"C\" fn(u8);\ntype B = unsafe fn();\n", &[]);
        assert_found("unsafe extern \"C\" {\n    fn a();\n}\n", &[]);
        assert_found("#[unsafe(no_mangle)]\nfn a() {}\n", &[]);
    }

    #[test]
    fn methods_of_traits_owe_what_the_trait_says() {
        assert_found("impl A for B {\n    unsafe fn a() {}\n}\n", &[]);
        assert_found("impl B {\n    unsafe fn a() {}\n}\n", &[(2, "callers owe")]);
        assert_found("trait A {\n    unsafe fn a();\n}\n", &[(2, "callers owe")]);
        assert_found(
            "impl A for B {\n    fn a() {\n        unsafe { b() }\n    }\n}\n",
            &[(3, "block")],
        );
    }

    #[test]
    fn core_is_for_another_rule() {
        assert_file(check, "core/mm/src/a.rs", "unsafe impl Send for A {}\n", &[]);
    }
}

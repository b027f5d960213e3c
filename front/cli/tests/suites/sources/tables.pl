% Terms, assoc lists and the clause database.
:- use_module(library(assoc)).
:- initialization(main).

add(I, A, B) :- K is I * 7919 mod 100003, put_assoc(K, A, value(I, [I, K]), B).

main :-
    numlist(1, 150000, L),
    empty_assoc(E),
    foldl(add, L, E, A),
    assoc_to_values(A, Vs), length(Vs, N),
    aggregate_all(sum(X), member(value(X, _), Vs), S),
    forall(member(I, L), (M is I mod 5003, assertz(fact(M, I)))),
    aggregate_all(count, fact(17, _), C),
    findall(X-Y, (member(X, L), Y is X * X mod 1009), Ps), msort(Ps, Q), last(Q, Z),
    format("~w ~w ~w ~w~n", [N, S, C, Z]),
    halt.

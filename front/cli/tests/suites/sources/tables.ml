(* Hash tables, maps and strings. *)
module M = Map.Make (Int)

let () =
  let table = Hashtbl.create 16 in
  for i = 0 to 999_999 do
    Hashtbl.replace table (i * 7919 mod 500_009) (string_of_int i)
  done;
  let sum = Hashtbl.fold (fun k v s -> s + k + String.length v) table 0 in
  let map = ref M.empty in
  for i = 0 to 399_999 do
    map := M.add (i * 104729 mod 300_007) (i, [i; i + 1]) !map
  done;
  let total = M.fold (fun k (i, l) s -> s + k * i + List.length l) !map 0 in
  Printf.printf "%d %d %d %d\n" (Hashtbl.length table) sum (M.cardinal !map) total

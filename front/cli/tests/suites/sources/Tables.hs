-- Maps and lazy lists.
module Main (main) where

import qualified Data.IntMap.Strict as IntMap
import qualified Data.Map.Strict as Map
import Data.List (foldl')

main :: IO ()
main = do
  let numbers = [(i * 7919 `mod` 200003, i) | i <- [0 .. 399999 :: Int]]
      first = IntMap.fromListWith (+) numbers
      second = foldl' (\m (k, v) -> Map.insertWith (++) (show k) [v] m) Map.empty numbers
  print (IntMap.size first, IntMap.foldl' (+) 0 first)
  print (Map.size second, sum (map length (Map.elems second)), fst (Map.findMax second))

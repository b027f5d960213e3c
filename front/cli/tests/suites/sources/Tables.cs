// Dictionaries, strings and arrays, enough for many collections.
using System;
using System.Collections.Generic;

public static class Tables {
    public static void Main() {
        var table = new Dictionary<string, long[]>();
        for (int i = 0; i < 400000; i++)
            table["key " + (long) i * 7919 % 200003] = new long[] { i, (long) i * i, i % 7 };
        long sum = 0;
        foreach (var pair in table)
            sum += pair.Key.Length + pair.Value[1] * pair.Value[2];
        var large = new List<int[]>();
        for (int i = 0; i < 40; i++) {
            var array = new int[1 << 19];
            for (int j = 0; j < array.Length; j++)
                array[j] = unchecked(j * 31 + i);
            large.Add(array);
            if (large.Count > 20) large.RemoveAt(i % 20);
        }
        foreach (var array in large)
            foreach (int value in array) sum = unchecked(sum * 31 + value);
        Console.WriteLine(table.Count + " " + sum);
    }
}

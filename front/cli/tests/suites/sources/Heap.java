// Keeps many small objects and some large arrays, drops and replaces them, prints a digest.

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;

public class Heap {
    private static final int THREADS = 2;

    static long work(long seed, int keys, int rounds) {
        Random random = new Random(seed);
        Map<Integer, String> strings = new HashMap<>();
        List<long[]> arrays = new ArrayList<>();
        for (int round = 0; round < rounds; round++) {
            for (int i = 0; i < keys; i++) {
                strings.put(random.nextInt(keys), "value " + random.nextLong());
            }
            long[] array = new long[1 << 18];
            for (int i = 0; i < array.length; i++) {
                array[i] = random.nextLong();
            }
            arrays.add(array);
            if (arrays.size() > 12) {
                arrays.remove(random.nextInt(arrays.size()));
            }
        }
        long digest = 0;
        for (int i = 0; i < keys; i++) {
            String value = strings.get(i);
            digest = digest * 31 + (value == null ? 0 : value.hashCode());
        }
        for (long[] array : arrays) {
            for (long value : array) {
                digest = digest * 31 + value;
            }
        }
        return digest;
    }

    public static void main(String[] arguments) throws InterruptedException {
        int keys = Integer.parseInt(arguments[0]);
        int rounds = Integer.parseInt(arguments[1]);
        long[] digests = new long[THREADS];
        Thread[] threads = new Thread[THREADS];
        for (int i = 0; i < THREADS; i++) {
            int which = i;
            threads[i] = new Thread(() -> digests[which] = work(which, keys, rounds));
            threads[i].start();
        }
        for (int i = 0; i < THREADS; i++) {
            threads[i].join();
            System.out.println("thread " + i + " " + Long.toHexString(digests[i]));
        }
    }
}

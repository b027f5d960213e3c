/* Uses pages round after round.   rounds MIB PARTS ROUNDS REPEATS ORDER
 *
 * In each of ROUNDS it changes every page of the PARTS, one part after the other, each part REPEATS
 * times in a row: by address if ORDER is "along", in a fixed random order if it is "about".
 */
#include "check.h"

int main(int count, char **arguments)
{
    if (count != 6)
        die("usage: rounds MIB PARTS ROUNDS REPEATS ORDER");
    size_t parts = number(arguments[2]), rounds = number(arguments[3]);
    size_t repeats = number(arguments[4]), each = number(arguments[1]) * MIB / PAGE / parts;
    uint64_t *words = map_pages(parts * each), seed = 1;
    uint32_t *order = malloc(each * sizeof *order);
    MUST(order);
    for (size_t page = 0; page < each; page++)
        order[page] = (uint32_t)page;
    for (size_t left = each; left > 1 && strcmp(arguments[5], "about") == 0; left--) {
        size_t other = next_random(&seed) % left;
        uint32_t last = order[left - 1];
        order[left - 1] = order[other], order[other] = last;
    }
    for (size_t page = 0; page < parts * each; page++)
        fill_page(words + page * WORDS, page, 1);
    for (size_t round = 0; round < rounds; round++)
        for (size_t part = 0; part < parts; part++)
            for (size_t repeat = 0; repeat < repeats; repeat++)
                for (size_t page = 0; page < each; page++)
                    words[(part * each + order[page]) * WORDS]++;
    for (size_t page = 0; page < parts * each; page++) {
        words[page * WORDS] -= rounds * repeats;
        check_page(words + page * WORDS, page, 1, "at the end");
    }
    printf("%zu pages\n", parts * each);
    return 0;
}

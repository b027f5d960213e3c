/* A program under unusual dynamic linking, other mallocs and environments, section by section.
 * Every section checks itself and prints one line. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static void fail(const char *what, long value)
{
	printf("%s: %ld\n", what, value);
	fflush(stdout);
	_exit(1);
}

/* A library that frees the program's block, and opens a library in its own directory. */
static void opened(void)
{
	char *large = malloc(4 << 20);
	large[0] = 1;
	if (dlopen("inner.so", RTLD_NOW))
		fail("inner.so is not in the program's path", 0);
	void *library = dlopen("./lib/outer.so", RTLD_NOW | RTLD_DEEPBIND);
	if (!library)
		fail(dlerror(), 0);
	void (*give)(void *) = (void (*)(void *))dlsym(library, "give");
	int (*beside)(void) = (int (*)(void))dlsym(library, "beside");
	for (int i = 0; i < 1000; i++)
		give(malloc(i));
	if (beside() != 42)
		fail("beside", beside());
	printf("opened %d\n", large[0]);
}

enum { BLOCKS = 24000, THREADS = 4 };
static unsigned char *blocks[BLOCKS];
static size_t sizes[BLOCKS];

static size_t size_of(unsigned block, unsigned round)
{
	unsigned random = (block * 2654435761u + round * 40503u) >> 7;
	return random % 97 == 0 ? 70000 + random % 50000 : 16 + random % 1500;
}

static unsigned char byte_of(unsigned block)
{
	return (unsigned char)(block * 7 + sizes[block]);
}

static void check(unsigned block, size_t bytes)
{
	for (size_t at = 0; at < bytes; at += 61)
		if (blocks[block][at] != byte_of(block))
			fail("a block is wrong", block);
}

static void fill(unsigned block, size_t bytes)
{
	sizes[block] = bytes;
	memset(blocks[block], byte_of(block), bytes);
}

static void *resize(void *thread)
{
	for (unsigned block = (uintptr_t)thread; block < BLOCKS; block += THREADS) {
		size_t bytes = size_of(block, 1);
		blocks[block] = reallocarray(blocks[block], 1, bytes);
		check(block, bytes < sizes[block] ? bytes : sizes[block]);
		fill(block, bytes);
		if (malloc_usable_size(blocks[block]) < bytes)
			fail("usable size", block);
	}
	return NULL;
}

/* Memory that the C library allocates for itself. */
static void directories(void)
{
	enum { MOST = 1500 };
	static DIR *open[MOST];
	struct rlimit limit = {2000, 4000};
	if (setrlimit(RLIMIT_NOFILE, &limit))
		fail("setrlimit", errno);
	for (int i = 0; i < MOST; i++)
		if (!(open[i] = opendir("/")) || !readdir(open[i]))
			fail("opendir", i);
	for (int i = 0; i < MOST; i++)
		closedir(open[i]);
}

/* operator new and delete of a malloc's library. jemalloc's new does not call malloc by name, and
 * its delete calls free. */
extern void *_Znwm(size_t bytes) __attribute__((weak));
extern void _ZdlPv(void *block) __attribute__((weak));

static void *create(unsigned block, size_t bytes)
{
	if (_Znwm && block % 7 == 0)
		return _Znwm(bytes);
	return block % 3 ? malloc(bytes) : block % 2 ? calloc(1, bytes) :
		aligned_alloc(64, (bytes + 63) & ~63ul);
}

static void delete(unsigned block)
{
	if (_ZdlPv && block % 7 == 0)
		_ZdlPv(blocks[block]);
	else
		free(blocks[block]);
}

static void mallocs(void)
{
	for (unsigned block = 0; block < BLOCKS; block++) {
		size_t bytes = size_of(block, 0);
		blocks[block] = create(block, bytes);
		if (malloc_usable_size(blocks[block]) < bytes)
			fail("usable size", block);
		fill(block, bytes);
	}
	directories();
	pthread_t threads[THREADS];
	for (uintptr_t i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, resize, (void *)i);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		for (unsigned block = 0; block < BLOCKS; block += 2) {
			check(block, sizes[block]);
			delete(block);
		}
		_exit(0);
	}
	int status;
	waitpid(child, &status, 0);
	char *text = strdup("a copy");
	char *line = NULL;
	if (asprintf(&line, "mallocs: child %d, %s", status, text) < 0)
		fail("asprintf", errno);
	puts(line);
	free(line);
	free(text);
	for (unsigned block = 0; block < BLOCKS; block++) {
		check(block, sizes[block]);
		delete(block);
	}
}

static pthread_barrier_t all;

static void *ask(void *number)
{
	char value = (char)(uintptr_t)number;
	char *block = malloc(20000);
	memset(block, value, 20000);
	pthread_barrier_wait(&all);
	uintptr_t right = 0;
	for (int at = 0; at < 20000; at += 100)
		right += block[at] == value;
	free(block);
	return (void *)right;
}

/* Each thread makes one small request. */
static void many(void)
{
	enum { MANY = 1000 };
	static pthread_t threads[MANY];
	pthread_attr_t small;
	pthread_barrier_init(&all, NULL, MANY);
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 64 << 10);
	for (uintptr_t i = 0; i < MANY; i++)
		if (pthread_create(&threads[i], &small, ask, (void *)i))
			fail("pthread_create", (long)i);
	uintptr_t right = 0;
	for (int i = 0; i < MANY; i++) {
		void *found;
		pthread_join(threads[i], &found);
		right += (uintptr_t)found;
	}
	printf("many %lu\n", (unsigned long)right);
}

/* Moves the break up and down, alongside the C library's own use of it. */
static void breaks(void)
{
	enum { MIB = 1 << 20, MOST = 40 };
	/* Without Highwater, the malloc of the C library uses the same break. */
	puts("breaks");
	char *small[100];
	for (int i = 0; i < 100; i++)
		small[i] = memset(malloc(500), i, 500);
	char *start = sbrk(0);
	char *first = sbrk(1000);
	if (first != start || sbrk(0) != start + 1000)
		fail("the break is not where it was", first - start);
	if (brk(start + MOST * MIB) != 0)
		fail("brk", errno);
	for (size_t at = 0; at < MOST * MIB; at += 512)
		*(size_t *)(start + at) = at;
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		for (size_t at = 0; at < MOST * MIB; at += 512)
			if (*(size_t *)(start + at) != at)
				_exit(1);
		if (sbrk(-MIB) != start + MOST * MIB || sbrk(2 * MIB) != start + (MOST - 1) * MIB)
			_exit(2);
		_exit(start[MOST * MIB - 1] || start[(MOST + 1) * MIB - 1]);
	}
	int status;
	waitpid(child, &status, 0);
	for (size_t at = 0; at < MOST * MIB; at += 512)
		if (*(size_t *)(start + at) != at)
			fail("the break has lost a word", at);
	for (int i = 0; i < 100; i++)
		free(small[i]);
	char *low = start + MIB - 1000;
	if (brk(low) != 0 || *(size_t *)(start + 512) != 512)
		fail("brk down", errno);
	if (sbrk(10 * MIB) != low)
		fail("sbrk up", (char *)sbrk(0) - start);
	for (char *at = start + MIB; at < low + 10 * MIB; at += 4096)
		if (*at)
			fail("new pages are not zeros", at - start);
	errno = 0;
	void *huge = sbrk((intptr_t)1 << 46);
	if (huge != (void *)-1 || errno != ENOMEM)
		fail("a break that cannot be", errno);
	fflush(stdout);
	child = fork();
	if (child == 0) {
		((volatile char *)sbrk(0))[4096] = 1;
		_exit(0);
	}
	int end;
	waitpid(child, &end, 0);
	printf("child %d, beyond it signal %d\n", status, WTERMSIG(end));
}

/* Memory that is not paged, of three kinds. */
static void kinds(void)
{
	enum { MIB = 1 << 20 };
	char *shared = mmap(NULL, 40 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int memory = memfd_create("memory", 0);
	if (ftruncate(memory, 9 * MIB))
		fail("ftruncate", errno);
	char *file = mmap(NULL, 9 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
	int access = PROT_READ | PROT_WRITE | PROT_EXEC;
	char *code = mmap(NULL, 20 * MIB, access, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memset(shared, 1, 40 * MIB);
	memset(file, 2, 9 * MIB);
	memset(code, 3, 20 * MIB);
	/* `highwater run` measures every 250 ms. */
	usleep(600000);
	printf("kinds %d\n", shared[5] + file[5] + code[5]);
}

/* Memory that is mapped twice, as generated code of a just-in-time compiler is. */
static void twice(void)
{
	enum { BYTES = 20 << 20 };
	int memory = memfd_create("code", 0);
	if (ftruncate(memory, BYTES))
		fail("ftruncate", errno);
	char *first = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
	char *second = mmap(NULL, BYTES, PROT_READ, MAP_SHARED, memory, 0);
	char *block = malloc(8 << 20);
	memset(first, 1, BYTES);
	memset(block, 1, 8 << 20);
	usleep(300000);
	printf("twice %d\n", memcmp(first, second, BYTES) + block[100]);
}

/* Tens of thousands of mappings, each with hundreds of bytes in /proc/self/smaps. */
static void mappings(void)
{
	enum { COUNT = 50000, BYTES = 8192 };
	char *block = malloc(4 << 20);
	memset(block, 1, 4 << 20);
	char *all = mmap(NULL, (size_t)COUNT * BYTES, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	for (size_t i = 0; i < COUNT; i += 2)
		if (mprotect(all + i * BYTES, BYTES, PROT_NONE))
			fail("mprotect", errno);
	sleep(1);
	printf("mappings %d\n", block[100]);
}

static void child(const char *way)
{
	char *block = malloc(8 << 20);
	memset(block, 1, 8 << 20);
	const char *kept = getenv("KEPT");
	printf("way %s: %s, %d\n", way, kept ? kept : "nothing kept", block[77]);
}

/* Starts itself in every possible way, with a cleared environment. */
static void cleared(char *self)
{
	memset(environ[0], 0, strlen(environ[0]));
	clearenv();
	char way[8];
	char *kept[] = {"KEPT=1", NULL};
	char *arguments[] = {self, "child", way, NULL};
	for (int i = 0; i < 10; i++) {
		pid_t pid = 0;
		int status = 0;
		sprintf(way, "%d", i);
		fflush(stdout);
		if (i == 8)
			status = posix_spawn(&pid, self, NULL, NULL, arguments, kept);
		else if (i == 9)
			status = posix_spawnp(&pid, self, NULL, NULL, arguments, kept);
		else
			pid = i % 2 ? vfork() : fork();
		if (status)
			fail("posix_spawn", status);
		if (pid == 0) {
			switch (i) {
			case 0: execve(self, arguments, kept); break;
			case 1: execv(self, arguments); break;
			case 2: execvp(self, arguments); break;
			case 3: execvpe(self, arguments, kept); break;
			case 4: execl(self, self, "child", way, NULL); break;
			case 5: execle(self, self, "child", way, NULL, kept); break;
			case 6: fexecve(open(self, O_RDONLY), arguments, kept); break;
			case 7: execlp(self, self, "child", way, "1", "2", "3", "4", "5", NULL); break;
			}
			_exit(9);
		}
		waitpid(pid, &status, 0);
		if (status)
			fail(way, status);
	}
}

int main(int count, char **arguments)
{
	const char *section = count > 1 ? arguments[1] : "";
	if (!strcmp(section, "opened"))
		opened();
	else if (!strcmp(section, "mallocs"))
		mallocs();
	else if (!strcmp(section, "many"))
		many();
	else if (!strcmp(section, "breaks"))
		breaks();
	else if (!strcmp(section, "kinds"))
		kinds();
	else if (!strcmp(section, "twice"))
		twice();
	else if (!strcmp(section, "mappings"))
		mappings();
	else if (!strcmp(section, "cleared"))
		cleared(arguments[0]);
	else if (!strcmp(section, "child"))
		child(arguments[2]);
	else
		return 2;
	return 0;
}

/* Files that a program includes from the directories of -I options are on the machine of the
 * program, where the compiler is not. So their text takes the place of the directive before the
 * compiler gets the source. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

enum { MAX_DEPTH = 32, MAX_TEXT = 16 << 20, MAX_DIRECTORIES = 64, MAX_PATH = 4096 };

/* text grows; it is failed when it is too long or there is no memory. */
struct text {
	char *bytes;
	size_t n, room;
	int failed;
};

struct includer {
	char *directories[MAX_DIRECTORIES];
	int count;
	int found; /* a directive was replaced */
	struct text out;
};

static void append(struct text *t, const char *bytes, size_t n)
{
	if (t->failed || n > MAX_TEXT - t->n) {
		t->failed = 1;
		return;
	}
	if (t->n + n + 1 > t->room) {
		size_t room = 2 * (t->n + n + 1);
		char *grown = realloc(t->bytes, room);
		if (!grown) {
			t->failed = 1;
			return;
		}
		t->bytes = grown;
		t->room = room;
	}
	memcpy(t->bytes + t->n, bytes, n);
	t->n += n;
	t->bytes[t->n] = 0;
}

/* option_next copies the next option, without its quotes, and returns what follows. */
static const char *option_next(const char *at, char *out, size_t room)
{
	size_t n = 0;
	char quote = 0;

	while (isspace((unsigned char)*at))
		at++;
	for (; *at && (quote || !isspace((unsigned char)*at)); at++) {
		if (*at == quote || (!quote && (*at == '"' || *at == '\''))) {
			quote = quote ? 0 : *at;
			continue;
		}
		if (*at == '\\' && at[1])
			at++;
		if (n + 1 < room)
			out[n++] = *at;
	}
	out[n] = 0;
	return at;
}

static void find_directories(struct includer *in, const char *options)
{
	char option[MAX_PATH];

	for (const char *at = options; *(at = option_next(at, option, sizeof option)) || *option;) {
		const char *path = option + 2;
		if (strncmp(option, "-I", 2))
			continue;
		if (!*path) {
			at = option_next(at, option, sizeof option);
			path = option;
		}
		if (in->count < MAX_DIRECTORIES && (in->directories[in->count] = strdup(path)))
			in->count++;
	}
}

static char *read_file(const char *path)
{
	FILE *f = fopen(path, "re");
	char *bytes = NULL;
	size_t n = 0;

	if (!f)
		return NULL;
	if ((bytes = malloc(MAX_TEXT + 1)))
		n = fread(bytes, 1, MAX_TEXT, f);
	if (bytes && (ferror(f) || !feof(f))) { /* a directory, or too long */
		free(bytes);
		bytes = NULL;
	}
	if (bytes) {
		char *fit = realloc(bytes, n + 1);
		bytes = fit ? fit : bytes;
		bytes[n] = 0;
	}
	fclose(f);
	return bytes;
}

/* find reads the file of a name, from the directory of the file that includes it or from those of
 * the options. path is the place for its path. */
static char *find(struct includer *in, const char *name, const char *from, char path[MAX_PATH])
{
	const char *slash = from ? strrchr(from, '/') : NULL;
	char *bytes = NULL;

	if (*name == '/')
		return snprintf(path, MAX_PATH, "%s", name) < MAX_PATH ? read_file(path) : NULL;
	if (slash && snprintf(path, MAX_PATH, "%.*s%s", (int)(slash + 1 - from), from, name) < MAX_PATH)
		bytes = read_file(path);
	for (int i = 0; i < in->count && !bytes; i++)
		if (snprintf(path, MAX_PATH, "%s/%s", in->directories[i], name) < MAX_PATH)
			bytes = read_file(path);
	return bytes;
}

/* directive takes the name of an #include out of a line. Of a macro's argument, as in
 * #include STRING(DIRECTORY/file.h), it takes the last part of the path. */
static int directive(const char *line, const char *end, char name[MAX_PATH], int *quoted)
{
	const char *close;

	while (line < end && isblank((unsigned char)*line))
		line++;
	if (line == end || *line++ != '#')
		return 0;
	while (line < end && isblank((unsigned char)*line))
		line++;
	if (end - line < 8 || strncmp(line, "include", 7))
		return 0;
	for (line += 7; line < end && isblank((unsigned char)*line);)
		line++;
	*quoted = line < end && *line == '"';
	if (line < end && (*line == '"' || *line == '<'))
		close = memchr(line + 1, *line == '"' ? '"' : '>', (size_t)(end - line - 1));
	else
		close = memchr(line, ')', (size_t)(end - line));
	if (!close)
		return 0;
	const char *first = line + 1;
	if (*line != '"' && *line != '<')
		for (first = close; first > line && first[-1] != '/' && first[-1] != '(';)
			first--;
	size_t n = (size_t)(close - first);
	if (n == 0 || n >= MAX_PATH)
		return 0;
	memcpy(name, first, n);
	name[n] = 0;
	return 1;
}

/* comment follows a line and returns whether a comment is open at its end. */
static int comment(const char *line, const char *end, int open)
{
	for (char quote = 0; line < end; line++) {
		if (open) {
			if (*line == '*' && line + 1 < end && line[1] == '/') {
				open = 0;
				line++;
			}
		} else if (quote) {
			if (*line == '\\')
				line++;
			else if (*line == quote)
				quote = 0;
		} else if (*line == '"' || *line == '\'')
			quote = *line;
		else if (*line == '/' && line + 1 < end && line[1] == '/')
			return 0;
		else if (*line == '/' && line + 1 < end && line[1] == '*') {
			open = 1;
			line++;
		}
	}
	return open;
}

static void expand(struct includer *in, const char *text, const char *from, int depth)
{
	int open = 0;
	size_t number = 1;

	for (const char *line = text; *line && !in->out.failed; number++) {
		const char *end = strchrnul(line, '\n');
		char name[MAX_PATH], path[MAX_PATH], mark[MAX_PATH + 64];
		int quoted;
		char *file = NULL;
		if (!open && depth < MAX_DEPTH && directive(line, end, name, &quoted))
			file = find(in, name, quoted ? from : NULL, path);
		if (file) {
			in->found = 1;
			append(&in->out, mark, (size_t)snprintf(mark, sizeof mark, "#line 1 \"%s\"\n", path));
			expand(in, file, path, depth + 1);
			append(&in->out, mark, (size_t)snprintf(mark, sizeof mark, "\n#line %zu \"%s\"", number + 1, from ? from : "source"));
			free(file);
		} else
			append(&in->out, line, (size_t)(end - line));
		open = comment(line, end, open);
		if (*end)
			append(&in->out, "\n", 1);
		line = *end ? end + 1 : end;
	}
}

char *include_files(const char *source, const char *options)
{
	struct includer in = {0};

	if (!options || !strstr(options, "-I"))
		return NULL;
	find_directories(&in, options);
	expand(&in, source, NULL, 0);
	for (int i = 0; i < in.count; i++)
		free(in.directories[i]);
	if (in.found && !in.out.failed)
		return in.out.bytes;
	free(in.out.bytes);
	return NULL;
}

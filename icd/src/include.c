/* Files that a program includes from its working directory and the directories of -I options are on
 * the machine of the program, where the compiler is not. So their text takes the place of the
 * directive before the compiler gets the source. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

enum { MAX_DEPTH = 32, MAX_TEXT = 16 << 20, MAX_DIRECTORIES = 64, MAX_PATH = 4096, MAX_ONCE = 1024 };

/* text grows; it is failed when it is too long or there is no memory. */
struct text {
	char *bytes;
	size_t n, room;
	int failed;
};

struct includer {
	char *directories[MAX_DIRECTORIES];
	int count;
	char *once[MAX_ONCE]; /* paths of files with #pragma once */
	int inside[MAX_ONCE];  /* they are being expanded */
	size_t onces;
	const struct inputs *embedded; /* headers that the compiler gets beside the source, or NULL */
	int found;                     /* a directive was replaced */
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

/* find reads the file of a name, from the directory of the file that includes it, the working
 * directory, or those of the options. path is the place for its path. */
static char *find(struct includer *in, const char *name, const char *from, char path[MAX_PATH])
{
	const char *slash = from ? strrchr(from, '/') : NULL;
	char *bytes = NULL;

	for (cl_uint i = 0; in->embedded && i < in->embedded->count; i++)
		if (!strcmp(in->embedded->names[i], name))
			return NULL;
	if (*name == '/')
		return snprintf(path, MAX_PATH, "%s", name) < MAX_PATH ? read_file(path) : NULL;
	if (slash && snprintf(path, MAX_PATH, "%.*s%s", (int)(slash + 1 - from), from, name) < MAX_PATH)
		bytes = read_file(path);
	if (!bytes && snprintf(path, MAX_PATH, "%s", name) < MAX_PATH)
		bytes = read_file(path);
	for (int i = 0; i < in->count && !bytes; i++)
		if (snprintf(path, MAX_PATH, "%s/%s", in->directories[i], name) < MAX_PATH)
			bytes = read_file(path);
	return bytes;
}

static const char *skip_blanks(const char *at, const char *end)
{
	while (at < end && isblank((unsigned char)*at))
		at++;
	return at;
}

/* directive returns what follows a word behind the # of a line, or NULL. */
static const char *directive(const char *line, const char *end, const char *word)
{
	size_t n = strlen(word);

	line = skip_blanks(line, end);
	if (line == end || *line++ != '#')
		return NULL;
	line = skip_blanks(line, end);
	return (size_t)(end - line) > n && !memcmp(line, word, n) ? skip_blanks(line + n, end) : NULL;
}

static int is_once(const char *line, const char *end)
{
	line = directive(line, end, "pragma");
	return line && end - line >= 4 && !memcmp(line, "once", 4);
}

/* once_number returns a number for the path of a file with #pragma once, or 0. */
static size_t once_number(struct includer *in, const char *text, const char *path)
{
	const char *line = text, *end;

	while (end = strchrnul(line, '\n'), !is_once(line, end)) {
		if (!*end)
			return 0;
		line = end + 1;
	}
	char *real = realpath(path, NULL);
	size_t i = 0;
	while (real && i < in->onces && strcmp(in->once[i], real) != 0)
		i++;
	if (i < in->onces || i == MAX_ONCE)
		free(real);
	else if (real)
		in->once[in->onces++] = real;
	return real && i < MAX_ONCE ? i + 1 : 0;
}

/* included takes the name of an #include out of a line. Of a macro's argument, as in
 * #include STRING(DIRECTORY/file.h), it takes the last part of the path. */
static int included(const char *line, const char *end, char name[MAX_PATH], int *quoted)
{
	const char *close;

	line = directive(line, end, "include");
	if (!line)
		return 0;
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

static void expand(struct includer *in, const char *text, const char *from, int depth);

/* expand_file puts a file in the place of a directive. One with #pragma once gets a macro that
 * guards it: the compiler decides which directives count. */
static void expand_file(struct includer *in, const char *text, const char *path, int depth)
{
	char mark[MAX_PATH + 128];
	size_t once = once_number(in, text, path);

	if (once && in->inside[once - 1])
		return; /* the guard would leave it out */
	if (once) {
		in->inside[once - 1] = 1;
		append(&in->out, mark, (size_t)snprintf(mark, sizeof mark, "#ifndef DXPU_ONCE_%zu\n#define DXPU_ONCE_%zu\n", once, once));
	}
	append(&in->out, mark, (size_t)snprintf(mark, sizeof mark, "#line 1 \"%s\"\n", path));
	expand(in, text, path, depth);
	if (once) {
		in->inside[once - 1] = 0;
		append(&in->out, "\n#endif", 7);
	}
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
		if (!open && depth < MAX_DEPTH && included(line, end, name, &quoted))
			file = find(in, name, quoted ? from : NULL, path);
		if (file) {
			in->found = 1;
			expand_file(in, file, path, depth + 1);
			append(&in->out, mark, (size_t)snprintf(mark, sizeof mark, "\n#line %zu \"%s\"", number + 1, from ? from : "source"));
			free(file);
		} else if (depth == 0 || !is_once(line, end))
			append(&in->out, line, (size_t)(end - line));
		open = comment(line, end, open);
		if (*end)
			append(&in->out, "\n", 1);
		line = *end ? end + 1 : end;
	}
}

char *include_files(const char *source, const char *options, const struct inputs *embedded)
{
	struct includer in = {.embedded = embedded && embedded->names ? embedded : NULL};

	if (!strstr(source, "include"))
		return NULL;
	find_directories(&in, options);
	expand(&in, source, NULL, 0);
	for (int i = 0; i < in.count; i++)
		free(in.directories[i]);
	for (size_t i = 0; i < in.onces; i++)
		free(in.once[i]);
	if (in.found && !in.out.failed)
		return in.out.bytes;
	free(in.out.bytes);
	return NULL;
}

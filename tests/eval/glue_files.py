"""Small files in the layouts of GLUE's download."""

HEADERS = {
    "SST-2": "sentence\tlabel",
    "MRPC": "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String",
    "STS-B": "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore",
    "QQP": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
    "QNLI": "index\tquestion\tsentence\tlabel",
    "RTE": "index\tsentence1\tsentence2\tlabel",
    "WNLI": "index\tsentence1\tsentence2\tlabel",
}
PARSES = "\t".join(f"sentence{i}_{kind}" for kind in ("binary_parse", "parse") for i in (1, 2))
MNLI = f"index\tpromptID\tpairID\tgenre\t{PARSES}\tsentence1\tsentence2\tlabel1\tgold_label"


def write(folder, name, lines, end="\n", start=b""):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(start + end.join([*lines, ""]).encode())
    return path


def mnli(folder, rows=30):
    labels = ("entailment", "neutral", "contradiction")

    def row(i, label, columns=1):
        return f"{i}\t{i}n\t{i}n\tfiction\t( a )\t( b )\t(ROOT)\t(ROOT)\tpremise {i}\thypothesis {i}" + (
            f"\t{label}" * columns + f"\t{label}"
        )

    dev = MNLI.replace("label1", "label1\tlabel2\tlabel3\tlabel4\tlabel5")
    write(folder, "MNLI/train.tsv", [MNLI, *(row(i, labels[i % 3]) for i in range(rows))])
    write(folder, "MNLI/dev_matched.tsv", [dev, row(900, "neutral", 5), row(901, "-", 5), row(902, "entailment", 5)])
    write(folder, "MNLI/dev_mismatched.tsv", [dev, row(950, "contradiction", 5)])

"""The official files of GLUE, a few rows of each, and the examples that they hold."""

from pathlib import Path

import numpy as np

from support import synthetic
from toprune.data.examples import Examples

# The official files, a few rows of each: quotation marks that open and never close, letters beyond
# ASCII, the byte order mark of MRPC, CoLA without a header.
HEADS = {
    "sst2": "sentence\tlabel",
    "mrpc": "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String",
    "stsb": "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2"
    "\tscore",
    "qqp": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
    "mnli": "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\t"
    "sentence1_parse\tsentence2_parse\tsentence1\tsentence2\tlabel1\tgold_label",
    "qnli": "index\tquestion\tsentence\tlabel",
    "rte": "index\tsentence1\tsentence2\tlabel",
}
STS = "main-captions\tMSRvid\t2012test\t0001\tnone\tnone"
MNLI = "31193\t31193n\tgovernment\t( a )\t( b )\t(ROOT a)\t(ROOT b)"
MNLI_DEV_HEAD = HEADS["mnli"].replace("label1", "label1\tlabel2\tlabel3\tlabel4\tlabel5")
MNLI_DEV = "neutral\tneutral\tneutral\tneutral"
OFFICIAL: dict[str, tuple[dict[str, list[str]], dict[str, Examples]]] = {
    "cola": (
        {
            "train.tsv": ['gj04\t1\t\tHe said "no.', "ks08\t0\t*\tThe naïve — him saw."],
            "dev.tsv": ["l-93\t0\t*\tThem left.", "l-93\t1\t\tThey left."],
            "test.tsv": ["index\tsentence", "0\tBill whistled past the house."],
        },
        {
            "train": Examples(['He said "no.', "The naïve — him saw."], None, [1, 0]),
            "validation": Examples(["Them left.", "They left."], None, [0, 1]),
        },
    ),
    "sst2": (
        {
            "train.tsv": [HEADS["sst2"], "hide `` new '' secretions \t0", '" a café \t1'],
            "dev.tsv": [HEADS["sst2"], "charming \t1", "bleak \t0"],
            "test.tsv": ["index\tsentence", "0\tuneasy mishmash "],
        },
        {
            "train": Examples(["hide `` new '' secretions ", '" a café '], None, [0, 1]),
            "validation": Examples(["charming ", "bleak "], None, [1, 0]),
        },
    ),
    "mrpc": (
        {
            "train.tsv": [
                HEADS["mrpc"],
                '1\t702876\t702977\t"He called\t"the witness',
                "0\t2108705\t2108831\tYucaipa™\tSafeway",
            ],
            "dev.tsv": [HEADS["mrpc"], "1\t1\t2\ta\tb", "0\t3\t4\tc\td"],
            "test.tsv": ["index\t#1 ID\t#2 ID\t#1 String\t#2 String", "0\t1\t2\tPCCW's\tSo"],
        },
        {
            "train": Examples(['"He called', "Yucaipa™"], ['"the witness', "Safeway"], [1, 0]),
            "validation": Examples(["a", "c"], ["b", "d"], [1, 0]),
        },
    ),
    "stsb": (
        {
            "train.tsv": [
                HEADS["stsb"],
                f'0\t{STS}\tA "plane\tAn air plane\t5.000',
                f"1\t{STS}\tA flûte\tA flute\t3.800",
            ],
            "dev.tsv": [HEADS["stsb"], f"0\t{STS}\ta\tb\t0.25", f"1\t{STS}\tc\td\t4.75"],
            "test.tsv": [HEADS["stsb"].removesuffix("\tscore"), f"0\t{STS}\ta\tb"],
        },
        {
            "train": Examples(['A "plane', "A flûte"], ["An air plane", "A flute"], [5.0, 3.8]),
            "validation": Examples(["a", "c"], ["b", "d"], [0.25, 4.75]),
        },
    ),
    "qqp": (
        {
            "train.tsv": [
                HEADS["qqp"],
                '133273\t213221\t213222\tWhy "x?\tWhat is π?\t0',
                "402555\t536040\t536041\tDid Muhammad live? ",  # a line break in a question
                '"\tWas Muhammad a real historical figure?\t0',
                "360472\t364011\t490273\tHow can I develop an app?\t\t0",  # no second question
                "150662\t155721\t7256\tWhat?\tWhich?\t1",
            ],
            "dev.tsv": [HEADS["qqp"], "0\t1\t2\ta\tb\t1", "1\t3\t4\tc\td\t0"],
            "test.tsv": ["id\tquestion1\tquestion2", "0\ta\tb"],
        },
        {
            "train": Examples(
                ['Why "x?', "How can I develop an app?", "What?"],
                ["What is π?", "", "Which?"],
                [0, 0, 1],
            ),
            "validation": Examples(["a", "c"], ["b", "d"], [1, 0]),
        },
    ),
    "mnli": (
        {
            "train.tsv": [
                HEADS["mnli"],
                f'0\t{MNLI}\tŒuvre "so\tGood\tneutral\tneutral',
                f"1\t{MNLI}\tYes\tYes, yes\tentailment\tentailment",
                f"2\t{MNLI}\tYes\tNo\tcontradiction\tcontradiction",
            ],
            "dev_matched.tsv": [
                MNLI_DEV_HEAD,
                f"0\t{MNLI}\ta\tb\tneutral\t{MNLI_DEV}\tneutral",
                f"1\t{MNLI}\tc\td\tentailment\t{MNLI_DEV}\tcontradiction",
            ],
            "dev_mismatched.tsv": [
                MNLI_DEV_HEAD,
                f"0\t{MNLI}\te\tf\tneutral\t{MNLI_DEV}\tentailment",
                f"1\t{MNLI}\tg\th\tneutral\t{MNLI_DEV}\tneutral",
            ],
            "test_matched.tsv": ["index\tsentence1\tsentence2", "0\ta\tb"],
        },
        {
            "train": Examples(['Œuvre "so', "Yes", "Yes"], ["Good", "Yes, yes", "No"], [1, 0, 2]),
            "validation": Examples(["a", "c"], ["b", "d"], [1, 2]),
            "validation_mismatched": Examples(["e", "g"], ["f", "h"], [0, 1]),
        },
    ),
    "qnli": (
        {
            "train.tsv": [
                HEADS["qnli"],
                '0\tWhen did "Zürich?\tIn 1351.\tentailment',
                "1\tWho?\tNobody.\tnot_entailment",
            ],
            "dev.tsv": [HEADS["qnli"], "0\ta\tb\tnot_entailment", "1\tc\td\tentailment"],
            "test.tsv": ["index\tquestion\tsentence", "0\ta\tb"],
        },
        {
            "train": Examples(['When did "Zürich?', "Who?"], ["In 1351.", "Nobody."], [0, 1]),
            "validation": Examples(["a", "c"], ["b", "d"], [1, 0]),
        },
    ),
    "rte": (
        {
            "train.tsv": [
                HEADS["rte"],
                '0\tNo "weapons.\tWeapons.\tnot_entailment',
                "1\tPope Jean-Paul Ⅱ\tA pope.\tentailment",
            ],
            "dev.tsv": [HEADS["rte"], "0\ta\tb\tentailment", "1\tc\td\tnot_entailment"],
            "test.tsv": ["index\tsentence1\tsentence2", "0\ta\tb"],
        },
        {
            "train": Examples(
                ['No "weapons.', "Pope Jean-Paul Ⅱ"], ["Weapons.", "A pope."], [1, 0]
            ),
            "validation": Examples(["a", "c"], ["b", "d"], [0, 1]),
        },
    ),
}


def write(folder: Path, files: dict[str, list[str]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in files.items():
        (folder / name).write_bytes("".join(f"{line}\n" for line in lines).encode())
    return folder


def mrpc_lines(count: int, seed: int) -> list[str]:
    rng = np.random.default_rng(seed)
    lines = [HEADS["mrpc"]]
    for i, row in enumerate(synthetic.rows(count, seed)):
        other = " ".join(f"w{j}" for j in rng.integers(10, 60, 20))
        lines.append(f"{row['label']}\t{i}\t{i}\t{row['text']}\t{other}")
    return lines

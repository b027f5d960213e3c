<?php
// Objects of PHP and of shared extensions (mbstring, dom, gmp, gd, sqlite3, intl, bz2) by the thousand.

ini_set('memory_limit', '-1');
$digest = hash_init('sha256');

$strings = [];
for ($i = 0; $i < 400000; $i++) {
    $strings[] = md5((string) $i) . str_repeat(chr(97 + $i % 26), $i % 97);
}
foreach ($strings as $text) {
    hash_update($digest, $text);
}
$upper = array_map(fn($text) => mb_strtoupper($text, 'UTF-8'), array_slice($strings, 0, 50000));
hash_update($digest, implode(',', $upper));

$document = new DOMDocument();
$root = $document->appendChild($document->createElement('root'));
for ($i = 0; $i < 50000; $i++) {
    $child = $root->appendChild($document->createElement('item', "text $i"));
    $child->setAttribute('number', (string) $i);
}
hash_update($digest, $document->saveXML());
$again = new DOMDocument();
$again->loadXML($document->saveXML(), LIBXML_PARSEHUGE);
hash_update($digest, (string) $again->getElementsByTagName('item')->length);

hash_update($digest, gmp_strval(gmp_fact(20000)));

$image = imagecreatetruecolor(1500, 1500);
for ($i = 0; $i < 1500; $i++) {
    $color = imagecolorallocate($image, $i % 256, $i * 7 % 256, $i * 13 % 256);
    imageline($image, $i, 0, 1499 - $i, 1499, $color);
}
ob_start();
imagepng($image);
hash_update($digest, ob_get_clean());

$base = new SQLite3(':memory:');
$base->exec('create table t(a integer primary key, b text)');
$base->exec('begin');
$insert = $base->prepare('insert into t values(?, ?)');
for ($i = 0; $i < 50000; $i++) {
    $insert->bindValue(1, $i);
    $insert->bindValue(2, $strings[$i]);
    $insert->execute();
}
$base->exec('commit');
hash_update($digest, $base->querySingle('select count(*) || max(b) from t'));

$names = array_slice($strings, 0, 50000);
(new Collator('de_DE'))->sort($names);
hash_update($digest, implode(',', $names));

$packed = bzcompress(implode('', $strings));
hash_update($digest, (string) strlen(bzdecompress($packed)));

echo hash_final($digest), "\n";
